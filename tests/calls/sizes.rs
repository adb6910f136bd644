//! The longest message, on every way that one can go: raised and lowered, of the first that goes there and of a
//! later one. One that is as long passes, and one byte more costs its call and nothing else.

use futures::{StreamExt, TryStreamExt, stream};
use sluicegate::{Bytes, CallError, Client, StatusCode};

use crate::support::{
    feed::{FeedClient, FeedServer, named},
    method, until_client_idle,
};

/// A way for bytes.
#[derive(Clone, Copy, Debug)]
enum Way {
    Request,
    Reply,
    ItemOfAClient,
    ItemOfAServer,
    ItemBothWays,
    ItemBack,
    /// The reply to a stream, and the arguments of one.
    ArgumentsOfAStream,
}

const ALL: [Way; 7] = [
    Way::Request,
    Way::Reply,
    Way::ItemOfAClient,
    Way::ItemOfAServer,
    Way::ItemBothWays,
    Way::ItemBack,
    Way::ArgumentsOfAStream,
];

/// Items of these lengths.
fn items(lens: &[usize]) -> impl futures::Stream<Item = Bytes> + use<> {
    stream::iter(lens.iter().map(|&len| Bytes::from(vec![7; len])).collect::<Vec<_>>())
}

/// Sends messages of `lens` by `way`, each behind the other.
async fn send(client: &Client, way: Way, lens: &[usize]) -> Result<(), CallError> {
    let feed: FeedClient = client.service();
    match way {
        Way::Request | Way::Reply => {
            for &len in lens {
                let back = client.call_bytes(method::BYTES, vec![7; len].into()).await?;
                assert_eq!(back.len(), len);
            }
        }
        Way::ItemOfAClient => {
            let sum = feed.measure().send_all(items(lens)).await?;
            assert_eq!(sum, lens.iter().sum::<usize>() as u64);
        }
        Way::ItemOfAServer => {
            // All of one length.
            let last = lens[lens.len() - 1];
            let came: Vec<_> = feed.bytes(lens.len() as u64, last as u32).try_collect().await?;
            assert!(came.iter().all(|item| item.len() == last));
        }
        Way::ItemBothWays | Way::ItemBack => {
            let back: Vec<_> = feed.echo().send_all(items(lens)).try_collect().await?;
            assert!(back.iter().map(Bytes::len).eq(lens.iter().copied()));
        }
        Way::ArgumentsOfAStream => {
            for &len in lens {
                // A length of five bytes before it, in bincode.
                let text = "x".repeat(len.saturating_sub(5));
                let mut call = client.server_stream::<_, u64, sluicegate::client::Coded>(named("no such"), (text,));
                match call.message().await.unwrap_err() {
                    error if error.code() == StatusCode::Unimplemented => {}
                    error => return Err(error),
                }
            }
        }
    }
    Ok(())
}

/// As [`send`], from a task of its own: it has its next turn before the connection has had many.
async fn send_apart(client: &Client, way: Way, lens: Vec<usize>) -> Result<(), CallError> {
    let client = client.clone();
    tokio::spawn(async move { send(&client, way, &lens).await }).await.expect("it does not panic")
}

#[tokio::test(start_paused = true)]
async fn the_longest_message_is_the_same_on_every_way_for_the_first_and_every_later_one() {
    // Three times as long as the default for unkind transports would take a minute.
    for max in [100_000_usize, 4 * 1024 * 1024 + 100_000] {
        for way in ALL {
            let server_sends = matches!(way, Way::Reply | Way::ItemOfAServer | Way::ItemBack);
            let (of_server, of_client) = if server_sends { (2 * max, max) } else { (max, 2 * max) };
            let server = FeedServer::with(|builder| builder.max_message(of_server as u32))
                .plain("megabytes go by, several at a time");
            let client = server.client_builder().max_message(of_client as u32).build();
            let fits = max;
            for before in [0, 1, 3] {
                let what = format!("{way:?} of {max}, behind {before}");
                let lens = [vec![if max < 1 << 20 { fits } else { 1_000 }; before], vec![fits]].concat();
                send_apart(&client, way, lens).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                let lens = [vec![1_000; before], vec![fits + 1]].concat();
                let error = send_apart(&client, way, lens).await.expect_err(&what);
                if server_sends {
                    assert_eq!(error.code(), StatusCode::ResourceExhausted, "{what}: {error:?}");
                } else {
                    let (CallError::RequestTooLarge { len, max: told, .. }
                    | CallError::ItemTooLarge { len, max: told, .. }) = error
                    else {
                        panic!("{what}: {error:?}")
                    };
                    assert_eq!((len, told), (fits as u64 + 1, max as u64), "{what}");
                }
                // The connection is as good as before.
                assert_eq!(client.service::<FeedClient>().count(3).count().await, 3, "{what}");
            }
            until_client_idle(&client).await;
            assert_eq!(client.snapshot().connects, 1, "{way:?}");
            drop(client);
            server.assert_idle().await;
            assert_eq!(server.snapshot().protocol_errors, 0, "{way:?}");
        }
    }
}
