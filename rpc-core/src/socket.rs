//! Options of TCP sockets that server and client want alike.

use std::io;

use socket2::SockRef;

/// How much of what was written the kernel may keep before the peer has made room for it, in bytes.
#[cfg(any(target_os = "linux", target_os = "android"))]
const MAX_UNSENT: u32 = 128 * 1024;

/// Prepares a TCP socket for frames that were gathered already, and whose going out is watched.
///
/// Nothing is held back to be gathered once more. And where the system can (Linux), it does not take
/// megabytes for a peer that reads slowly: it would take the next only when a third of them has left, and
/// until then who reads steadily would look like one who does not read at all.
///
/// # Errors
///
/// Those of the system, for a socket that is gone.
pub fn prepare<'s>(socket: impl Into<SockRef<'s>>) -> io::Result<()> {
    let socket = socket.into();
    socket.set_tcp_nodelay(true)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // Where a sandbox does not know it, connections are none the worse for anybody who reads quickly.
        let _ = socket.set_tcp_notsent_lowat(MAX_UNSENT);
    }
    Ok(())
}
