//! Methods of the probe whose calls have items, with a mode for each way in which a service can treat them.

use std::time::Duration;

use rpc_codec::{CallKind, CodecId, Coded, Plain};
use sluicegate::{
    Bytes, Context, ItemSender, Status, Streaming,
    client::Method,
    server::{MethodOptions, Outlet, ServiceMethods},
};
use tokio::{task::yield_now, time::sleep};

use crate::{
    script::Script,
    service::{Probe, SERVICE, encode},
};

macro_rules! methods {
    ($($constant:ident $name:literal)*) => {
        $(pub(crate) const $constant: Method = Method::new(SERVICE, $name);)*
    };
}

methods! { COUNT "count" POUR "pour" GATHER "gather" CHAT "chat" }
methods! { COUNT_SPAWNED "count_spawned" GATHER_SPAWNED "gather_spawned" CHAT_SPAWNED "chat_spawned" }

/// What a call asks for: how its items are treated, how many there are to be, and how long.
pub(crate) type Wish = (u8, u8, u16);

/// Sends as many items as are wished for: at once, with pauses, when the gate is open, or up to an error.
async fn count(probe: Probe, (mode, items, len): Wish, mut out: ItemSender<String>) -> Result<(), Status> {
    let _running = probe.run();
    if mode & 0x10 != 0 {
        out.set_threshold(1);
    }
    for n in 0..items % MAX_ITEMS {
        match mode & 7 {
            0 => sleep(Duration::from_millis(n.into())).await,
            1 => probe.pass_gate().await,
            2 if !out.is_ready() => return Err(Status::aborted("nobody takes it")),
            3 if n == 2 => return Err(Status::aborted("enough")),
            4 => out.ready().await?,
            5 => yield_now().await,
            _ => {}
        }
        out.send("x".repeat(len.into())).await?;
    }
    if mode & 0x20 != 0 {
        return Err(out.closed().await);
    }
    Ok(())
}

/// Takes items as [`take`] does, and says how many and how long they were.
async fn gather(probe: Probe, (mode, items, _): Wish, mut from: Streaming<String>) -> Result<(u64, u64), Status> {
    let _running = probe.run();
    let (mut count, mut len) = (0, 0);
    while let Some(item) = take(&probe, mode, items, count, &mut from).await? {
        (count, len) = (count + 1, len + item.len() as u64);
    }
    Ok((count, len))
}

/// Sends back what it takes, or something else, and goes on or not when there is no more.
async fn chat(
    probe: Probe,
    wish: Wish,
    mut from: Streaming<String>,
    mut out: ItemSender<String>,
) -> Result<(), Status> {
    let _running = probe.run();
    let (mode, items, len) = wish;
    let mut taken = 0;
    while let Some(item) = take(&probe, mode, items, taken, &mut from).await? {
        taken += 1;
        out.send(if mode & 0x80 != 0 { "x".repeat(len.into()) } else { item }).await?;
    }
    if mode & 0x40 != 0 {
        drop(from);
        return count(probe.clone(), wish, out).await;
    }
    Ok(())
}

/// The next item: at once, after a pause, when the gate is open, of so many that are asked for one by one;
/// none any more when enough were taken.
async fn take(
    probe: &Probe,
    mode: u8,
    items: u8,
    taken: u64,
    from: &mut Streaming<String>,
) -> Result<Option<String>, Status> {
    match mode & 7 {
        1 => probe.pass_gate().await,
        2 => sleep(Duration::from_millis(5)).await,
        3 => {
            from.set_manual();
            from.request(1);
        }
        4 if taken == u64::from(items) => return Ok(None),
        5 if taken == u64::from(items) => return Err(Status::aborted("enough")),
        _ => {}
    }
    from.message().await
}

/// Sends what is wished for from a stream, as it is.
async fn pour(probe: Probe, (mode, items, len): Wish, out: Outlet<Bytes, Plain>) -> Result<(), Status> {
    let _running = probe.run();
    let item = Bytes::from(vec![7; len.into()]);
    let items = (0..items % MAX_ITEMS).map(move |n| match mode {
        3 if n == 2 => Err(Status::aborted("enough")),
        _ => Ok(item.clone()),
    });
    out.send_all(futures::stream::iter(items)).await
}

pub(crate) fn register(probe: &Probe, methods: &mut ServiceMethods<'_>) {
    for (spawn, names) in
        [(false, ["count", "gather", "chat"]), (true, ["count_spawned", "gather_spawned", "chat_spawned"])]
    {
        let options = || MethodOptions::default().spawn(spawn);
        let [p, q, r] = [(); 3].map(|()| probe.clone());
        methods.server_stream(names[0], options(), move |_: &Context, (wish, out): (Wish, Outlet<String, Coded>)| {
            count(p.clone(), wish, out.into_sender())
        });
        methods.client_stream::<_, _, Coded, _, Coded, _, _>(
            names[1],
            options(),
            move |_: &Context, (wish, items): (Wish, Streaming<String>)| gather(q.clone(), wish, items),
        );
        methods.both_ways::<_, _, Coded, _, _, _, _>(
            names[2],
            options(),
            move |_: &Context, (wish, items, out): (Wish, Streaming<String>, Outlet<String, Coded>)| {
                chat(r.clone(), wish, items, out.into_sender())
            },
        );
    }
    let probe = probe.clone();
    methods.server_stream(
        "pour",
        MethodOptions::default(),
        move |_: &Context, (wish, out): (Wish, Outlet<Bytes, Plain>)| pour(probe.clone(), wish, out),
    );
}

/// A method whose calls have items, its kind, and a body for it in the codec that it takes.
pub(crate) fn call(script: &mut Script<'_>) -> (Method, CallKind, CodecId, Vec<u8>) {
    let codec = script.pick(&[CodecId::BINCODE, CodecId::JSON]);
    let (method, kind) = script.pick(&[
        (COUNT, CallKind::ServerStream),
        (COUNT_SPAWNED, CallKind::ServerStream),
        (POUR, CallKind::ServerStream),
        (GATHER, CallKind::ClientStream),
        (GATHER_SPAWNED, CallKind::ClientStream),
        (CHAT, CallKind::BothWays),
        (CHAT_SPAWNED, CallKind::BothWays),
    ]);
    let wish: Wish = (script.byte(), script.byte(), script.u16());
    (method, kind, codec, encode(codec, &wish))
}

/// Enough to fill a window with long ones, and little memory.
const MAX_ITEMS: u8 = 64;
