//! What of a latency is the machine's: a bare echo between two threads, beside whatever else goes on.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use crate::latency::{Latency, Stopwatch};

/// Calls a bare echo every `pace`, and notes how long that takes; until it is dropped.
pub(crate) struct Machine {
    times: Arc<Stopwatch>,
    /// What hangs up when it is dropped.
    _alive: mpsc::Sender<()>,
}

impl Machine {
    /// `standing` is what each of its threads does first.
    pub(crate) fn watch(pace: Duration, standing: fn()) -> Self {
        let times = Arc::new(Stopwatch::new());
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
                noted.note(began, pace);
            }
        });
        Self { times, _alive: alive }
    }

    pub(crate) fn begin_anew(&self) {
        self.times.begin_anew();
    }

    pub(crate) fn read(&self) -> Latency {
        self.times.read()
    }
}

const LEN: usize = 64;
