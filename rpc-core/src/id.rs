//! Names on the wire: calls, connections, methods.

use std::fmt;

/// The name of one call on its connection: a sequence (48 bits) and a slot (16 bits).
///
/// Ids increase strictly on a connection and are never used again on it, so an answer can only
/// ever belong to one call. The slot is the caller's own shortcut to its table; a server treats the
/// whole number as opaque.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(u64);

impl CallId {
    /// The id of frames that belong to the connection and not to a call.
    pub const CONNECTION: Self = Self(0);
    /// How many calls one connection can name before it has to be replaced.
    pub const MAX_SEQUENCE: u64 = (1 << 48) - 1;

    /// The id as it stands on the wire.
    pub const fn from_wire(id: u64) -> Self {
        Self(id)
    }

    /// An id of its parts. `sequence` must not exceed [`CallId::MAX_SEQUENCE`]; higher bits are cut.
    pub const fn new(sequence: u64, slot: u16) -> Self {
        Self((sequence << 16) | slot as u64)
    }

    /// The id as it stands on the wire.
    pub const fn to_wire(self) -> u64 {
        self.0
    }

    /// The caller's slot.
    pub const fn slot(self) -> u16 {
        self.0 as u16
    }

    /// The position in the order of calls of this connection.
    pub const fn sequence(self) -> u64 {
        self.0 >> 16
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallId({self})")
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.sequence(), self.slot())
    }
}

/// The name of a connection within its process; for logs and for whom a permit belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

impl ConnectionId {
    /// The id number `n`.
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    /// The number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The name of a method on the wire: FNV-1a 64 of the UTF-8 `package.Service/Method`.
///
/// FNV-1a is Fowler, Noll and Vo's hash (offset basis `0xcbf29ce484222325`, prime `0x100000001b3`).
/// It is a name, not a defence: a server refuses to register two methods of one id.
///
/// ```
/// # use rpc_core::MethodId;
/// const GET: MethodId = MethodId::of("Library", "get_book");
/// assert_eq!(GET, MethodId::of_path("Library/get_book"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MethodId(u64);

impl MethodId {
    /// The id of the method `name` of `service`.
    pub const fn of(service: &str, name: &str) -> Self {
        let hash = fnv1a(FNV_OFFSET, service.as_bytes());
        let hash = fnv1a(hash, b"/");
        Self(fnv1a(hash, name.as_bytes()))
    }

    /// The id of a whole path, `package.Service/Method`.
    pub const fn of_path(path: &str) -> Self {
        Self(fnv1a(FNV_OFFSET, path.as_bytes()))
    }

    /// The id as it stands on the wire.
    pub const fn from_wire(id: u64) -> Self {
        Self(id)
    }

    /// The id as it stands on the wire.
    pub const fn to_wire(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for MethodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MethodId({self})")
    }
}

impl fmt::Display for MethodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

const fn fnv1a(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut i = 0;
    while i < bytes.len() {
        hash ^= bytes[i] as u64;
        hash = hash.wrapping_mul(FNV_PRIME);
        i += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_id_gives_back_its_parts() {
        let id = CallId::new(CallId::MAX_SEQUENCE, 0xbeef);
        assert_eq!(id.sequence(), CallId::MAX_SEQUENCE);
        assert_eq!(id.slot(), 0xbeef);
        assert_eq!(CallId::from_wire(id.to_wire()), id);
    }

    #[test]
    fn a_later_call_has_a_greater_id_whatever_its_slot() {
        assert!(CallId::new(8, 0) > CallId::new(7, u16::MAX));
    }

    #[test]
    fn method_ids_are_fnv1a_of_the_path() {
        // Published test vectors of FNV-1a 64.
        assert_eq!(MethodId::of_path("").to_wire(), 0xcbf2_9ce4_8422_2325);
        assert_eq!(MethodId::of_path("a").to_wire(), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(MethodId::of_path("foobar").to_wire(), 0x8594_4171_f739_67e8);
        assert_eq!(MethodId::of("foo", "bar"), MethodId::of_path("foo/bar"));
    }
}
