//! Memory that a hostile body makes the decoder take, counted byte by byte, and its time.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::env;
use std::time::{Duration, Instant};

use rpc_codec::payload::CodecId;
use serde::Deserialize;
use serde::de::DeserializeOwned;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, and what the current thread has of it.
struct Counting;

impl Counting {
    fn take(len: usize) {
        // Wraps when memory of another thread is given back here; only differences are used.
        LIVE.set(LIVE.get().wrapping_add(len));
        PEAK.set(PEAK.get().max(LIVE.get()));
    }

    fn give_back(len: usize) {
        LIVE.set(LIVE.get().wrapping_sub(len));
    }
}

// SAFETY: everything is the system allocator's answer, unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::take(layout.size());
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::take(layout.size());
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // Old and new may exist side by side.
        Self::take(len);
        Self::give_back(layout.size());
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, len) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::give_back(layout.size());
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most memory that decoding `body` held at once.
fn peak<T: DeserializeOwned>(codec: CodecId, body: &[u8]) -> usize {
    let before = LIVE.get();
    PEAK.set(before);
    let decoded = codec.decode::<T>(body);
    let peak = PEAK.get() - before;
    drop(decoded);
    peak
}

/// In the long form nothing else has the machine, and time is a figure: a microsecond for a byte, and a millisecond.
fn is_long() -> bool {
    env::var("SLUICEGATE_SIEGE").is_ok_and(|size| size == "full")
}

fn time_of<T: DeserializeOwned>(codec: CodecId, body: &[u8]) -> Duration {
    // The least of a few, which a busy machine disturbs least.
    let time = || {
        let began = Instant::now();
        drop(codec.decode::<T>(body));
        began.elapsed()
    };
    (0..3).map(|_| time()).min().expect("three runs")
}

fn is_quick<T: DeserializeOwned>(codec: CodecId, body: &[u8]) {
    let (time, bound) = (time_of::<T>(codec, body), Duration::from_micros(1_000 + body.len() as u64));
    assert!(time <= bound, "{time:?} for {body:?} as {codec}");
}

/// What a claim costs does not depend on what it claims: a body that claims the most costs as one that claims
/// little more than there is. Sixteen times as much is still no loop over what is claimed.
fn costs_what_is_there<T: DeserializeOwned>() {
    let body = |claim: &[u8]| [claim, &[0; 4_096]].concat();
    for ((codec, honest), (_, boundless)) in claims(5_000).into_iter().zip(claims(u64::MAX)) {
        let (honest, boundless) = (body(&honest), body(&boundless));
        let ratio = || {
            let least = time_of::<T>(codec, &honest).max(Duration::from_micros(20));
            time_of::<T>(codec, &boundless).as_secs_f64() / least.as_secs_f64()
        };
        let ratios: Vec<_> = (0..4).map(|_| ratio()).take_while(|&ratio| ratio > 16.0).collect();
        assert!(ratios.len() < 4, "{ratios:?} times as long as {codec}");
    }
}

fn stays_small<T: DeserializeOwned>() {
    costs_what_is_there::<T>();
    for follow in 0..=64u64 {
        for len in [0, 1, follow, follow + 1, 1000, 1 << 16, 1 << 20, 1 << 32, 1 << 40, 1 << 63, u64::MAX] {
            for filler in [0, 1, 2, 7, 0xff] {
                for (codec, claim) in claims(len) {
                    let mut body = claim;
                    body.extend(vec![filler; follow as usize]);
                    let (peak, bound) = (peak::<T>(codec, &body), 64 * body.len() + (64 << 10));
                    assert!(peak <= bound, "{peak} bytes for {len} claimed by {body:?} as {codec}");
                    if is_long() {
                        is_quick::<T>(codec, &body);
                    }
                }
            }
        }
    }
}

/// The ways in which the binary codecs claim `len` elements, or bytes.
fn claims(len: u64) -> Vec<(CodecId, Vec<u8>)> {
    let mut claims = Vec::new();
    for &codec in CodecId::supported() {
        if codec == CodecId::MESSAGE_PACK {
            // Of an array, a map, a string, and bytes.
            let len = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
            claims.extend([0xdd, 0xdf, 0xdb, 0xc6].map(|marker| (codec, [&[marker], &len[..]].concat())));
        } else if codec != CodecId::JSON {
            let mut claim = Vec::new();
            codec.encode(&len, &mut claim).expect("integers encode");
            claims.push((codec, claim));
        }
    }
    claims
}

macro_rules! stay_small {
    ($($name:ident: $ty:ty),* $(,)?) => {$(
        #[test]
        fn $name() {
            stays_small::<$ty>();
        }
    )*};
}

stay_small! {
    strings_take_what_is_there: String,
    bytes_take_what_is_there: Vec<u8>,
    byte_fields_take_what_is_there: Field,
    integers_take_what_is_there: Vec<u64>,
    vectors_of_strings_take_what_is_there: Vec<String>,
    hash_maps_take_what_is_there: HashMap<String, String>,
    tree_maps_take_what_is_there: BTreeMap<String, String>,
    nested_vectors_take_what_is_there: Vec<Vec<u8>>,
    deques_take_what_is_there: VecDeque<u64>,
    boxed_slices_take_what_is_there: Box<[String]>,
    sets_take_what_is_there: HashSet<[u64; 3]>,
    option_chains_take_what_is_there: Vec<Option<Option<Box<u8>>>>,
    recursive_types_take_what_is_there: Forest,
    recursive_maps_take_what_is_there: Folder,
    large_elements_take_what_is_there: Vec<Option<[u64; 32]>>,
}

#[derive(Deserialize)]
struct Field(
    #[serde(with = "rpc_codec::payload::bytes")]
    #[expect(dead_code)]
    Vec<u8>,
);

#[derive(Deserialize)]
#[serde(transparent)]
struct Forest(#[expect(dead_code)] Vec<Self>);

#[derive(Deserialize)]
struct Folder(#[expect(dead_code)] HashMap<String, Self>);
