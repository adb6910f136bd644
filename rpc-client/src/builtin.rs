//! Clients of the services that every server can have.

use rpc_codec::builtin::{DESCRIBE_SERVICE, Description, HEALTH_SERVICE, Health};

use crate::{
    call::{Call, Method},
    client::{Client, ServiceClient},
};

/// Asks a server how it is, if its builder says `health(true)`. The calls pass none of its limits.
#[derive(Clone, Debug)]
pub struct HealthClient(Client);

impl ServiceClient for HealthClient {
    fn from_client(client: Client) -> Self {
        Self(client)
    }
}

impl HealthClient {
    /// How the service of this name is, and the server, if it is empty: the worst that is known of either.
    /// A service that the server does not have is NOT_FOUND.
    pub fn check(&self, service: impl Into<String>) -> Call<(String,), Health> {
        self.0.call(const { Method::new(HEALTH_SERVICE, "check") }, (service.into(),))
    }

    /// How the server, whose name is empty, and all of its services are, by name.
    pub fn list(&self) -> Call<(), Vec<(String, Health)>> {
        self.0.call(const { Method::new(HEALTH_SERVICE, "list") }, ())
    }
}

/// Asks a server what it has, if its builder says `describe(true)`.
#[derive(Clone, Debug)]
pub struct DescribeClient(Client);

impl ServiceClient for DescribeClient {
    fn from_client(client: Client) -> Self {
        Self(client)
    }
}

impl DescribeClient {
    /// Services, methods, types and limits.
    pub fn describe(&self) -> Call<(), Description> {
        self.0.call(const { Method::new(DESCRIBE_SERVICE, "describe") }, ())
    }
}
