//! Values by their type, put beside a call or a connection by who knows more about it.

use std::{
    any::{Any, TypeId},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

/// Values of any types, one of each: what a handler found out for the service behind it.
///
/// Empty it allocates nothing. Clones share the values. A panic of a value's drop ends here.
///
/// ```
/// use rpc_core::Extensions;
///
/// struct User(String);
///
/// let mut extensions = Extensions::new();
/// extensions.insert(User("ada".to_owned()));
/// assert_eq!(extensions.get::<User>().unwrap().0, "ada");
/// assert!(extensions.get::<u32>().is_none());
/// ```
#[derive(Clone, Default)]
pub struct Extensions {
    /// A word where there are none. There are few, so they are searched and not hashed.
    values: Option<Box<Values>>,
}

#[derive(Clone, Default)]
struct Values(Vec<(TypeId, Value)>);

type Value = Arc<dyn Any + Send + Sync>;

impl Extensions {
    /// None.
    pub const fn new() -> Self {
        Self { values: None }
    }

    /// Adds a value. The one of the same type that was there before is given back.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) -> Option<Arc<T>> {
        let values = &mut self.values.get_or_insert_default().0;
        let (of, value) = (TypeId::of::<T>(), Arc::new(value));
        match values.iter_mut().find(|(known, _)| *known == of) {
            Some((_, there)) => std::mem::replace(there, value).downcast().ok(),
            None => {
                values.push((of, value));
                None
            }
        }
    }

    /// The value of this type.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.find::<T>()?.downcast_ref()
    }

    /// The value of this type, to be kept.
    pub fn get_arc<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        Arc::clone(self.find::<T>()?).downcast().ok()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.values.is_none()
    }

    fn find<T: 'static>(&self) -> Option<&Value> {
        self.values.as_ref()?.0.iter().find(|(known, _)| *known == TypeId::of::<T>()).map(|(_, value)| value)
    }
}

impl Drop for Values {
    /// One by one: two panics at once would end the process.
    fn drop(&mut self) {
        for value in self.0.drain(..) {
            // The panic has been told where panics are told. What it throws may throw once more.
            if let Err(thrown) = catch_unwind(AssertUnwindSafe(|| drop(value)))
                && let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(thrown)))
            {
                Box::leak(again);
            }
        }
    }
}

impl fmt::Debug for Extensions {
    /// How many; the values are the user's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extensions({})", self.values.as_ref().map_or(0, |values| values.0.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_value_of_a_type() {
        let mut extensions = Extensions::new();
        assert!(extensions.is_empty() && extensions.get::<u8>().is_none());
        assert!(extensions.insert(1_u8).is_none() && extensions.insert("text").is_none());
        assert_eq!(extensions.insert(2_u8).as_deref(), Some(&1));
        let clone = extensions.clone();
        assert_eq!((extensions.get(), clone.get_arc().as_deref()), (Some(&2_u8), Some(&"text")));
        assert_eq!(format!("{clone:?}"), "Extensions(2)");
        assert!(clone.get::<u16>().is_none());
    }

    #[test]
    fn a_panic_of_a_drop_ends_here_and_the_others_are_dropped() {
        struct Panics(Arc<()>);
        impl Drop for Panics {
            fn drop(&mut self) {
                assert!(Arc::strong_count(&self.0) > 1000, "wanted");
            }
        }
        struct Quiet(#[expect(dead_code)] Arc<()>);

        let counted = Arc::new(());
        let mut extensions = Extensions::new();
        extensions.insert(Panics(Arc::clone(&counted)));
        extensions.insert(Quiet(Arc::clone(&counted)));
        drop(extensions);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
