//! Details of a status as types of the user's own.

use rpc_core::Status;
use serde::{Serialize, de::DeserializeOwned};

use crate::{Codec, PayloadError, payload::Bincode};

/// A type that travels with a status.
///
/// It is encoded in bincode, whatever the codec of the call is, and found again by its type URL. So a
/// change of the type is another type URL: see `docs/evolving.md`.
///
/// ```
/// use rpc_codec::{Detail, TypedDetails};
/// use rpc_core::Status;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// struct Invalid {
///     field: String,
///     at: u32,
/// }
///
/// impl Detail for Invalid {
///     const TYPE_URL: &'static str = "library.example/Invalid";
/// }
///
/// let invalid = Invalid { field: "isbn".to_owned(), at: 3 };
/// let status = Status::invalid_argument("no ISBN").with_typed(&invalid)?;
/// assert_eq!(status.typed::<Invalid>(), Some(Ok(invalid)));
/// # Ok::<(), rpc_codec::PayloadError>(())
/// ```
pub trait Detail: Serialize + DeserializeOwned {
    /// Names the type, as `host/Name`.
    const TYPE_URL: &'static str;
}

/// Puts typed details into a status, and finds them there.
pub trait TypedDetails: Sized {
    /// Adds a detail behind the others.
    ///
    /// # Errors
    ///
    /// It cannot be encoded.
    fn with_typed<D: Detail>(self, detail: &D) -> Result<Self, PayloadError>;

    /// The first detail of this type, if there is one.
    fn typed<D: Detail>(&self) -> Option<Result<D, PayloadError>> {
        self.all_typed().next()
    }

    /// All details of this type, in their order.
    fn all_typed<D: Detail>(&self) -> impl Iterator<Item = Result<D, PayloadError>>;
}

impl TypedDetails for Status {
    fn with_typed<D: Detail>(self, detail: &D) -> Result<Self, PayloadError> {
        let mut value = Vec::new();
        Bincode::encode(detail, &mut value)?;
        Ok(self.with_detail(D::TYPE_URL, value))
    }

    fn all_typed<D: Detail>(&self) -> impl Iterator<Item = Result<D, PayloadError>> {
        let of_type = self.details().iter().filter(|detail| detail.type_url == D::TYPE_URL);
        of_type.map(|detail| Bincode::decode(&detail.value))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Missing(String);

    impl Detail for Missing {
        const TYPE_URL: &'static str = "library.example/Missing";
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Other(u8);

    impl Detail for Other {
        const TYPE_URL: &'static str = "library.example/Other";
    }

    #[test]
    fn details_are_found_by_type_and_in_order() {
        let missing = |name: &str| Missing(name.to_owned());
        let status = Status::not_found("two").with_typed(&missing("a")).unwrap().with_typed(&missing("b")).unwrap();
        assert_eq!(status.typed(), Some(Ok(missing("a"))));
        assert_eq!(status.all_typed().collect::<Vec<_>>(), [Ok(missing("a")), Ok(missing("b"))]);
        assert_eq!(status.typed::<Other>(), None);
    }

    #[test]
    fn a_detail_that_is_no_such_value_is_an_error() {
        let status = Status::not_found("").with_detail(Other::TYPE_URL, [1, 2]);
        assert!(matches!(status.typed::<Other>(), Some(Err(PayloadError::TrailingBytes { left: 1, .. }))));
    }
}
