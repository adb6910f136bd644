//! What arguments may be: generic types, and such as are there under a condition.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sluicegate::{Bytes, Client, Context, Status, client::Method};

use crate::{code, connect};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Page<T, const N: usize> {
    items: Vec<T>,
}

pub(crate) trait Keyed {
    type Key: Serialize + DeserializeOwned + Send + 'static;
}

pub(crate) struct Books;

impl Keyed for Books {
    type Key = u64;
}

type Index<K> = BTreeMap<K, Vec<String>>;

#[sluicegate::service]
pub(crate) trait Generic {
    async fn page(&self, page: Page<Option<(String, [u8; 2])>, { 1 + 1 }>) -> Page<u8, 2>;
    async fn index(&self, index: Index<u16>, of: HashMap<String, Index<u8>>) -> Result<Index<u16>, Status>;
    async fn by_key(&self, key: <Books as Keyed>::Key) -> Result<Option<Box<[<Books as Keyed>::Key]>>, Status>;
    async fn outcome(&self, outcome: Result<u8, String>) -> Result<Result<String, u8>, Status>;
    async fn text(&self, text: std::borrow::Cow<'static, str>) -> Box<str>;
}

struct Service;

impl Generic for Service {
    async fn page(&self, page: Page<Option<(String, [u8; 2])>, 2>) -> Page<u8, 2> {
        Page { items: page.items.into_iter().flatten().map(|(_, [first, _])| first).collect() }
    }

    async fn index(&self, index: Index<u16>, of: HashMap<String, Index<u8>>) -> Result<Index<u16>, Status> {
        if of.is_empty() { Err(Status::invalid_argument("of what?")) } else { Ok(index) }
    }

    async fn by_key(&self, key: u64) -> Result<Option<Box<[u64]>>, Status> {
        Ok((key > 0).then(|| [key].into()))
    }

    async fn outcome(&self, outcome: Result<u8, String>) -> Result<Result<String, u8>, Status> {
        Ok(match outcome {
            Ok(number) => Err(number),
            Err(text) => Ok(text),
        })
    }

    async fn text(&self, text: std::borrow::Cow<'static, str>) -> Box<str> {
        text.into_owned().into()
    }
}

#[tokio::test]
async fn types_of_arguments_may_be_generic() {
    let client: GenericClient = connect(GenericServer::new(Service)).service();
    let page = Page { items: vec![None, Some(("x".to_owned(), [7, 8]))] };
    assert_eq!(client.page(page).await.unwrap(), Page { items: vec![7] });
    let index = Index::from([(1, vec!["one".to_owned()])]);
    assert_eq!(client.index(index.clone(), HashMap::from([("x".to_owned(), Index::new())])).await.unwrap(), index);
    assert_eq!(code(client.index(index, HashMap::new()).await), sluicegate::StatusCode::InvalidArgument);
    assert_eq!(client.by_key(3).await.unwrap().as_deref(), Some(&[3][..]));
    assert_eq!(client.outcome(Ok(3)).await.unwrap(), Err(3));
    assert_eq!(&*client.text("shared".into()).await.unwrap(), "shared");
}

/// `any()` of nothing does not hold.
#[sluicegate::service]
pub(crate) trait Conditional {
    async fn put(&self, ctx: Context, #[cfg(any())] gone: NoSuchType, kept: u8, #[cfg(not(any()))] there: u16) -> u32;
    async fn same(&self, #[cfg(not(any()))] a: u8, #[cfg(not(any()))] b: u8, #[cfg(any())] c: u8) -> u8;
    #[cfg(any())]
    async fn never(&self, #[cfg(not(any()))] a: NoSuchType);
    /// Bytes, once the other argument is gone.
    async fn bytes(&self, body: Bytes, #[cfg(any())] gone: u8) -> Bytes;
    #[cfg(not(any()))]
    async fn both(
        &self,
        #[cfg(not(any()))]
        #[cfg(any(unix, not(unix)))]
        a: u8,
    ) -> u8;
}

struct Conditions;

impl Conditional for Conditions {
    async fn put(&self, _: Context, kept: u8, there: u16) -> u32 {
        u32::from(kept) + u32::from(there)
    }

    async fn same(&self, a: u8, b: u8) -> u8 {
        a + b
    }

    async fn bytes(&self, body: Bytes) -> Bytes {
        body
    }

    async fn both(&self, a: u8) -> u8 {
        a
    }
}

#[tokio::test]
async fn a_condition_of_an_argument_holds_for_trait_client_and_wire() {
    let client: Client = connect(ConditionalServer::new(Conditions));
    let conditional: ConditionalClient = client.service();
    assert_eq!(conditional.put(1, 2).await.unwrap(), 3);
    assert_eq!(conditional.same(1, 2).await.unwrap(), 3);
    assert_eq!(conditional.both(4).await.unwrap(), 4);
    assert_eq!(conditional.bytes(Bytes::from_static(b"x")).await.unwrap(), b"x"[..]);
    assert_eq!(client.call::<_, u32>(Method::new("Conditional", "put"), (1_u8, 2_u16)).await.unwrap(), 3);
    let bytes = client.call_bytes(Method::new("Conditional", "bytes"), Bytes::from_static(b"y"));
    assert_eq!(bytes.await.unwrap(), b"y"[..], "no codec touches it");
}
