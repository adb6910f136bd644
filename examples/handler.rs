//! Handlers of one's own: an audit that sees every call and its end, and a limit for each tenant, which
//! refuses as the framework's own limits do.
//!
//! ```sh
//! cargo run --example handler
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    error::Error,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use sluicegate::{
    CallId, Client, Refusal, RefusalReason, Server, Status,
    limit::ConcurrencyLimit,
    server::{Answer, Call, CallInfo, Decision, Handler, Interest, Outbound},
};

/// Counts what happened, for all connections.
#[derive(Default)]
struct Figures {
    served: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

/// One is made for each connection: what it needs to remember of that connection's calls is a field.
struct Audit {
    figures: Arc<Figures>,
    tenants: BTreeMap<CallId, String>,
}

/// A call that is cancelled has no response with which to forget it: so many are remembered, and the oldest forgotten.
/// More than the 1,024 that a connection may have in flight unless its server says otherwise.
const MAX_REMEMBERED: usize = 2_048;

impl Handler for Audit {
    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        if let Some(tenant) = call.metadata().get_str("tenant") {
            self.tenants.insert(call.id(), tenant.to_owned());
            if self.tenants.len() > MAX_REMEMBERED {
                self.tenants.pop_first();
            }
        }
        Decision::Pass
    }

    /// Responses come last to first: being the first handler, it sees what all others did.
    fn outbound(&mut self, call: &CallInfo<'_>, response: &mut Outbound<'_>) {
        let tenant = self.tenants.remove(&call.id).unwrap_or_else(|| "nobody".to_owned());
        let method = call.method.map_or("unknown", |method| method.path());
        match response.answer() {
            Answer::Reply(body) => {
                self.figures.served.fetch_add(1, Relaxed);
                println!("{tenant} called {method}: {} bytes", body.len());
            }
            Answer::Status(status) => {
                self.figures.failed.fetch_add(1, Relaxed);
                println!("{tenant} called {method}: {status}");
            }
            Answer::Refusal(refusal) => {
                self.figures.refused.fetch_add(1, Relaxed);
                println!("{tenant} called {method}: refused by the limit {:?}", refusal.limit());
            }
            _ => {}
        }
    }
}

/// So many calls of a tenant at once, whichever connections they come by.
struct PerTenant {
    limits: Arc<Mutex<HashMap<String, Arc<ConcurrencyLimit>>>>,
}

impl Handler for PerTenant {
    fn interest() -> Interest {
        Interest::INBOUND
    }

    /// It limits load, so it does not see calls of the health service.
    fn limits_load() -> bool {
        true
    }

    fn inbound(&mut self, call: &mut Call<'_>) -> Decision {
        let Some(tenant) = call.metadata().get_str("tenant") else {
            return Decision::Answer(Status::invalid_argument("say for which tenant: metadata `tenant`"));
        };
        // In earnest the tenants are known, or the map is bounded: whoever calls chooses this name.
        let mut limits = self.limits.lock().expect("no thread panics with it");
        let limit = limits
            .entry(tenant.to_owned())
            .or_insert_with(|| ConcurrencyLimit::new("tenant", Some(1)).expect("one is a limit"));
        // A long body may take its time, and must not hold a permit meanwhile. When it is there we are asked again.
        let admitted = match call.is_whole() {
            true => limit.try_acquire().map(Some),
            false => limit.check().map(|()| None),
        };
        match admitted {
            Ok(None) => Decision::AwaitBody,
            Ok(Some(permit)) => {
                // It comes back by itself when the response has been written, or the call is lost.
                call.carry(permit);
                Decision::Pass
            }
            Err(refused) => Decision::Refuse(
                Refusal::new(RefusalReason::ConcurrencyLimit)
                    .with_limit(refused.limit, refused.max, refused.in_flight)
                    .with_retry_delay(Duration::from_millis(20)),
            ),
        }
    }
}

#[sluicegate::service]
trait Greeter {
    async fn greet(&self, name: String) -> Result<String, Status>;
}

struct Slow;

impl Greeter for Slow {
    async fn greet(&self, name: String) -> Result<String, Status> {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if name.is_empty() { Err(Status::invalid_argument("whom?")) } else { Ok(format!("Good day, {name}.")) }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (figures, limits) = (Arc::<Figures>::default(), Arc::default());
    let counted = Arc::clone(&figures);
    let server = Server::builder()
        .service(GreeterServer::new(Slow))
        .pipeline(move |pipeline, _connection| {
            let audit = Audit { figures: Arc::clone(&counted), tenants: BTreeMap::new() };
            pipeline.add_first("audit", audit);
            pipeline.add_before("concurrency", "per tenant", PerTenant { limits: Arc::clone(&limits) });
        })
        .build()?
        .bind("127.0.0.1:0")
        .await?;
    let (address, handle) = (server.local_addr(), server.handle());
    let serving = tokio::spawn(server.serve());

    let greeter: GreeterClient = Client::new(address).service();
    let greet = |name: &str, tenant| greeter.greet(name.to_owned()).metadata("tenant", tenant);
    // Two of one tenant at once, of which one has to come back, and one of another.
    let (one, two, other) = tokio::join!(greet("Ada", "acme"), greet("Bob", "acme"), greet("Cyd", "initech"));
    println!("{}", other?);
    let refused = [one, two].into_iter().find_map(Result::err).expect("the tenant has a call in flight");
    let refused = refused.refused().expect("a refusal");
    println!("acme is told that {} of {:?} are in flight", refused.figure("in_flight").unwrap_or(0), refused.limit());
    assert!(greet("", "acme").await.is_err());
    assert!(greeter.greet("Eve".to_owned()).await.is_err(), "without a tenant");

    drop(greeter);
    handle.shutdown();
    serving.await?;
    let figure = |of: &AtomicU64| of.load(Relaxed);
    println!(
        "{} served, {} failed, {} refused",
        figure(&figures.served),
        figure(&figures.failed),
        figure(&figures.refused)
    );
    Ok(())
}
