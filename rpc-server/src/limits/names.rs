//! Names of limits that users choose.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

/// The name, for as long as the process lives.
///
/// A refusal names its limit without an allocation, so the name must outlive every refusal. Each
/// different name is kept once, and only configuration makes names, so they are few.
pub(crate) fn intern(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into());
    names.insert(name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once() {
        let first = intern("a name of a pool");
        let second = intern(&String::from("a name of a pool"));
        assert!(std::ptr::eq(first, second));
    }
}
