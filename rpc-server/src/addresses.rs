//! How many connections each address has.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use dashmap::{DashMap, mapref::entry::Entry};

/// Counts the connections of each address, and takes no more than `max` of one.
///
/// What it knows is bounded by the connections there are: an address is forgotten with its last one.
#[derive(Debug)]
pub(crate) struct Addresses {
    max: u64,
    open: DashMap<IpAddr, u64>,
}

/// A connection of an address. Its drop gives the place back.
#[derive(Debug)]
pub(crate) struct Place {
    all: Arc<Addresses>,
    address: IpAddr,
}

impl Addresses {
    pub(crate) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { max, open: DashMap::new() })
    }

    /// A place for one more connection of `address`, if it has fewer than it may.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = whose(address);
        match self.open.entry(address) {
            Entry::Occupied(open) if *open.get() >= self.max => return None,
            Entry::Occupied(mut open) => *open.get_mut() += 1,
            Entry::Vacant(none) => drop(none.insert(1)),
        }
        Some(Place { all: Arc::clone(self), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Entry::Occupied(mut open) = self.all.open.entry(self.address) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
    }
}

/// Who has an address of IPv6 has at least all that begin with the same 64 bits.
fn whose(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_so_many_places_and_is_forgotten_with_the_last() {
        let addresses = Addresses::new(2);
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let (one, two) = (addresses.enter(address("10.0.0.1")), addresses.enter(address("::ffff:10.0.0.1")));
        assert!(one.is_some() && two.is_some(), "it is the same address in other words");
        assert!(addresses.enter(address("10.0.0.1")).is_none());
        let other = addresses.enter(address("10.0.0.2"));
        assert!(other.is_some());
        drop(one);
        let one = addresses.enter(address("10.0.0.1"));
        assert!(one.is_some() && addresses.enter(address("10.0.0.1")).is_none());
        drop((one, two, other));
        assert!(addresses.open.is_empty());
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_count_together() {
        let addresses = Addresses::new(1);
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let one = addresses.enter(address("2001:db8:1:2::1"));
        assert!(one.is_some() && addresses.enter(address("2001:db8:1:2:ffff::9")).is_none());
        assert!(addresses.enter(address("2001:db8:1:3::1")).is_some());
    }
}
