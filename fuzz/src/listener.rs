//! What a caller does with a call that has items, by a script that it takes along.

use std::time::Duration;

use rpc_codec::{Coded, Plain};
use sluicegate::{
    Bytes, CallError, Client,
    client::{ItemSink, ItemStream, Reply},
};
use tokio::{
    task::{JoinHandle, yield_now},
    time::{sleep, timeout},
};

use crate::{
    script::Script,
    streams::{self, Wish},
};

/// Begins a call with items.
pub(crate) fn call(client: &Client, script: &mut Script<'_>) -> JoinHandle<Result<(), CallError>> {
    let (kind, limit) = (script.byte(), script.pick(&[None, Some(5), Some(1_000), Some(0)]));
    let (wish, steps): (Wish, _) = ((0, 0, 0), Steps(script.bytes().to_vec()));
    macro_rules! options {
        ($call:expr) => {
            match limit {
                Some(ms) => $call.timeout(Duration::from_millis(ms)),
                None => $call,
            }
        };
    }
    match kind & 3 {
        0 => {
            let call = options!(client.server_stream::<_, String, Coded>(streams::COUNT, wish));
            tokio::spawn(async move { steps.play(None::<ItemSink<String, Coded>>, Some(call.open().await?)).await })
        }
        1 => {
            let call = options!(client.server_stream::<_, Bytes, Plain>(streams::POUR, wish));
            tokio::spawn(async move { steps.play(None::<ItemSink<String, Coded>>, Some(call.open().await?)).await })
        }
        2 => {
            let call = options!(client.client_stream::<_, _, (u64, u64), Coded, Coded>(streams::GATHER, wish));
            tokio::spawn(async move {
                let (sink, reply): (_, Reply<_, _>) = call.open().await?;
                let sent = steps.play(Some(sink), None::<ItemStream<String, Coded>>).await;
                if kind & 0x80 != 0 {
                    return sent;
                }
                reply.await.map(drop)
            })
        }
        _ => {
            let call = options!(client.both_ways::<_, _, String, Coded, Coded>(streams::CHAT, wish));
            tokio::spawn(async move {
                let (sink, items) = call.open().await?;
                steps.play(Some(sink), Some(items)).await
            })
        }
    }
}

/// What a caller does one after the other; at their end it takes all items.
struct Steps(Vec<u8>);

impl Steps {
    async fn play<T, W>(
        self,
        mut sink: Option<ItemSink<String, Coded>>,
        mut items: Option<ItemStream<T, W>>,
    ) -> Result<(), CallError>
    where
        W: rpc_codec::DecodeItem<T>,
    {
        for step in self.0 {
            let number = step >> 4;
            match step & 0xf {
                0..=2 => {
                    let Some(sink) = &mut sink else { continue };
                    let len = [0, 10, 100, 1_000, 10_000, 40_000][usize::from(number) % 6];
                    // It waits for credit as long as the call does, or for a while.
                    if let Ok(sent) = timeout(PAUSE * u32::from(step & 0xf), sink.send("x".repeat(len))).await {
                        sent?;
                    }
                }
                3 => {
                    if let Some(sink) = sink.take() {
                        sink.end();
                    }
                }
                4 => drop(sink.take()),
                5 => {
                    if let Some(sink) = &mut sink {
                        sink.set_threshold(1 << number);
                    }
                }
                6..=8 => {
                    let Some(items) = &mut items else { continue };
                    if let Ok(item) = timeout(PAUSE, items.message()).await
                        && item?.is_none()
                    {
                        return Ok(());
                    }
                }
                9 => {
                    if let Some(items) = &mut items {
                        items.set_manual();
                    }
                }
                10 => {
                    if let Some(items) = &mut items {
                        items.request(number.into());
                    }
                }
                11 => sleep(PAUSE * u32::from(number)).await,
                12 => drop(items.take()),
                13 => return Ok(()),
                _ => yield_now().await,
            }
        }
        if let Some(sink) = sink {
            sink.end();
        }
        if let Some(mut items) = items {
            while items.message().await?.is_some() {}
        }
        Ok(())
    }
}

const PAUSE: Duration = Duration::from_millis(3);
