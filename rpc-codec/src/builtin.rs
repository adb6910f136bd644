//! What the services that every server can have say: how it is, and what it has.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The name of the health service on the wire. Its methods are in `docs/protocol.md`.
pub const HEALTH_SERVICE: &str = "sluicegate.Health";
/// The name of the description service on the wire.
pub const DESCRIBE_SERVICE: &str = "sluicegate.Describe";

/// How a server, or one of its services, is.
///
/// On the wire it is a number, so that every codec has the same word for it, and a client takes one that
/// it does not know for [`Health::NotServing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "u8", into = "u8")]
#[non_exhaustive]
pub enum Health {
    /// It takes calls.
    Serving,
    /// It still takes calls, and will soon take none: new ones shall go elsewhere.
    Draining,
    /// It takes no calls, or none that would succeed.
    NotServing,
}

impl Health {
    /// Whether new calls shall be sent to it.
    pub fn is_ready(self) -> bool {
        self == Self::Serving
    }
}

impl From<u8> for Health {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::Serving,
            1 => Self::Draining,
            _ => Self::NotServing,
        }
    }
}

impl From<Health> for u8 {
    fn from(health: Health) -> Self {
        match health {
            Health::Serving => 0,
            Health::Draining => 1,
            Health::NotServing => 2,
        }
    }
}

/// What a server has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Description {
    /// Its services, in the order in which they were added.
    pub services: Vec<ServiceDescription>,
    /// The codecs it takes, by name.
    pub codecs: Vec<String>,
    /// Its limits by the names of the settings, those that are set. Times are in milliseconds, rates in calls
    /// per second, rounded.
    pub limits: BTreeMap<String, u64>,
    /// The limits that methods share, by name: so many calls are in flight in each.
    pub pools: BTreeMap<String, u64>,
}

/// One service of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServiceDescription {
    /// `package.Service`.
    pub name: String,
    /// Its methods.
    pub methods: Vec<MethodDescription>,
}

/// One method of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MethodDescription {
    /// Its name on the wire.
    pub name: String,
    /// Other paths that are taken for it.
    pub aliases: Vec<String>,
    /// Names and types of its arguments, as its author wrote them; empty if nobody told.
    pub arguments: Vec<(String, String)>,
    /// The type it returns, as its author wrote it; empty if nobody told.
    pub returns: String,
    /// Which ways items go: `unary`, `client stream`, `server stream` or `stream both ways`.
    pub kind: String,
    /// The type of the client's items, as its author wrote it; empty if there are none, or nobody told.
    pub items_from_client: String,
    /// The type of the server's items, likewise.
    pub items_from_server: String,
    /// Whether it takes and returns bytes that no codec touches.
    pub untouched: bool,
    /// Whether it blocks a thread.
    pub blocking: bool,
    /// For how many calls a call counts.
    pub weight: u32,
    /// Its calls in flight at most, if it has a limit of its own.
    pub max_concurrent_calls: Option<u64>,
    /// The pool in which its calls count, if they do.
    pub pool: Option<String>,
    /// For how many milliseconds its streams may be idle, if they have a time of their own, in place of the server's;
    /// `u64::MAX` is for ever.
    #[serde(default)]
    pub stream_idle_timeout: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_health_is_one_number_in_every_codec_and_an_unknown_one_is_not_serving() {
        for health in [Health::Serving, Health::Draining, Health::NotServing] {
            for codec in crate::CodecId::supported() {
                let mut body = Vec::new();
                codec.encode(&health, &mut body).unwrap();
                assert_eq!(body.len(), 1, "{codec}");
                assert_eq!(codec.decode(&body), Ok(health));
            }
        }
        assert_eq!(Health::from(9), Health::NotServing);
        assert!(Health::Serving.is_ready() && !Health::Draining.is_ready());
    }
}
