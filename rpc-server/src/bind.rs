//! Binding to an address, with room in the system's queue for those who come at once.

use std::{io, net::SocketAddr};

use tokio::net::{TcpListener, TcpSocket, ToSocketAddrs, lookup_host};

/// Listens on the first of the addresses that can be bound.
pub(crate) async fn bind(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let mut error = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
    for address in lookup_host(address).await? {
        match listen(address) {
            Ok(listener) => return Ok(listener),
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A server that is restarted gets its port again. Elsewhere it would get one that another has.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// How many peers may wait to be accepted, if the system allows it. The 128 of the standard library are fewer than
/// come at once when a server is restarted; those for whom there is no room are not told, and try again after one,
/// three and seven seconds.
const BACKLOG: u32 = 1_024;
