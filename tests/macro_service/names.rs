//! Services, types and arguments that are called as what is written for them, or as what that uses.

use sluicegate::Client as Connection;

use super::connect;

/// Services of the names of what a service is made of; each takes and returns a type of such a name.
macro_rules! services {
    ($($module:ident: $name:ident, $server:ident, $client:ident;)*) => {
        $(mod $module {
            use serde::{Deserialize, Serialize};

            #[derive(Debug, PartialEq, Serialize, Deserialize)]
            pub(crate) struct Method(pub(crate) u8);

            #[sluicegate::service]
            pub(crate) trait $name {
                async fn one(&self, __sg_service: Method, __sg_0: u8, __sg_1: u8) -> Method;
                async fn two(&self, ctx: sluicegate::Context, __sg_context: u8, __sg_methods: u8) -> u8;
                async fn three(&self, __sg_outlet: u8, out: sluicegate::ItemSender<Method>) -> Result<(), sluicegate::Status>;
            }

            pub(crate) struct Real;

            impl $name for Real {
                async fn one(&self, method: Method, a: u8, b: u8) -> Method {
                    Method(method.0 + a + b)
                }

                async fn two(&self, _: sluicegate::Context, a: u8, b: u8) -> u8 {
                    a + b
                }

                async fn three(&self, n: u8, mut out: sluicegate::ItemSender<Method>) -> Result<(), sluicegate::Status> {
                    out.send(Method(n)).await
                }
            }
        })*

        #[tokio::test]
        async fn services_and_arguments_may_be_called_as_what_is_written_for_them() {
            $({
                let client: $module::$client = connect($module::$server::new($module::Real)).service::<$module::$client>();
                assert_eq!(client.one($module::Method(1), 2, 3).await.unwrap(), $module::Method(6));
                assert_eq!(client.two(1, 2).await.unwrap(), 3);
                assert_eq!(client.three(7).message().await.unwrap(), Some($module::Method(7)));
                let _: fn(Connection) -> $module::$client = sluicegate::client::ServiceClient::from_client;
            })*
        }
    };
}

services! {
    client: Client, ClientServer, ClientClient;
    server: Server, ServerServer, ServerClient;
    service: Service, ServiceServer, ServiceClient;
    service_client: ServiceMethods, ServiceMethodsServer, ServiceMethodsClient;
    call: Call, CallServer, CallClient;
    context: Context, ContextServer, ContextClient;
    status: Status, StatusServer, StatusClient;
    future: Future, FutureServer, FutureClient;
    send: Send, SendServer, SendClient;
    clone: Clone, CloneServer, CloneClient;
    debug: Debug, DebugServer, DebugClient;
    arc: Arc, ArcServer, ArcClient;
    s: S, SServer, SClient;
    option: Option, OptionServer, OptionClient;
    string: String, StringServer, StringClient;
    formatter: Formatter, FormatterServer, FormatterClient;
    into: Into, IntoServer, IntoClient;
    item_sender: ItemSender, ItemSenderServer, ItemSenderClient;
}
