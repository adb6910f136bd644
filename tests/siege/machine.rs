//! What of a latency is the machine's: a bare echo between two threads, beside whatever else goes on.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

/// Calls a bare echo every `pace`, and notes how long that takes; until it is dropped.
pub(crate) struct Machine {
    times: Arc<Mutex<Histogram<u64>>>,
    /// What hangs up when it is dropped.
    _alive: mpsc::Sender<()>,
}

impl Machine {
    /// `standing` is what each of its threads does first.
    pub(crate) fn watch(pace: Duration, standing: fn()) -> Self {
        let times = Arc::new(Mutex::new(Histogram::new(3).expect("three digits can be had")));
        let (alive, ends) = mpsc::channel();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        for end in [&near, &far] {
            end.set_nodelay(true).unwrap();
        }
        thread::spawn(move || {
            standing();
            let mut bytes = [0; LEN];
            while far.read_exact(&mut bytes).and_then(|()| far.write_all(&bytes)).is_ok() {}
        });
        let noted = Arc::clone(&times);
        thread::spawn(move || {
            standing();
            let mut bytes = [0; LEN];
            while ends.recv_timeout(pace) == Err(RecvTimeoutError::Timeout) {
                let began = Instant::now();
                near.write_all(&bytes).and_then(|()| near.read_exact(&mut bytes)).expect("the echo is there");
                let (took, pace) = (began.elapsed().as_micros() as u64, pace.as_micros() as u64);
                lock(&noted).record_correct(took, pace).expect("it has no upper end");
            }
        });
        Self { times, _alive: alive }
    }

    pub(crate) fn begin_anew(&self) {
        lock(&self.times).reset();
    }

    pub(crate) fn p99(&self) -> Duration {
        Duration::from_micros(lock(&self.times).value_at_quantile(0.99))
    }
}

fn lock(times: &Mutex<Histogram<u64>>) -> MutexGuard<'_, Histogram<u64>> {
    times.lock().unwrap_or_else(PoisonError::into_inner)
}

const LEN: usize = 64;
