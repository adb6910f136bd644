//! One file for each target, with a function `check` that panics when a promise is broken.

pub(crate) mod bincode;
pub(crate) mod client_connection;
pub(crate) mod frames;
pub(crate) mod hello;
pub(crate) mod json;
pub(crate) mod messagepack;
pub(crate) mod postcard;
pub(crate) mod server_connection;
pub(crate) mod status;
