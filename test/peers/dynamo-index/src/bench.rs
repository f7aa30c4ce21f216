//! The rows: each function measures one thing once. Repetition, order and
//! medians are the caller's business.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use dynamo_kv_router::indexer::positional::{PositionalIndexer, SearchMode};
use dynamo_kv_router::indexer::SyncIndexer;
use dynamo_kv_router::protocols::{compute_seq_hash_for_block, LocalBlockHash, OverlapScores, RouterEvent};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, RadixTree};

use crate::clock::{self, Samples, Summary};
use crate::lanes::Lanes;
use crate::workload::{self, all_tokens, hash_tokens, size_of, Chain, Keys, Plan};

/// Dynamo's jump size for its positional indexer.
const JUMP: usize = 32;

pub fn crtc() -> ConcurrentRadixTreeCompressed {
    ConcurrentRadixTreeCompressed::new()
}

pub fn positional(mode: SearchMode) -> PositionalIndexer {
    PositionalIndexer::new_with_mode(JUMP, mode)
}

/// Blocks per CPU second: the stores, then (not with singles) the removes.
pub fn update(indexer: &str, lanes: usize, plan: &Plan, singles: bool) -> Result<Vec<f64>, String> {
    let mut phases = vec![vec![]];
    plan.stores(Keys::Given, singles, |e| phases[0].push(e));
    if !singles {
        phases.push(vec![]);
        plan.removes(|e| phases[1].push(e));
    }
    Ok(match indexer {
        "radix" if lanes == 1 => update_radix(phases),
        "crtc" => update_lanes(crtc(), lanes, phases),
        "positional" => update_lanes(positional(SearchMode::Strided), lanes, phases),
        _ => return Err(format!("no {indexer} with {lanes} lanes")),
    })
}

fn update_radix(phases: Vec<Vec<RouterEvent>>) -> Vec<f64> {
    let mut tree = RadixTree::new();
    let one = |events: Vec<RouterEvent>| {
        let blocks: usize = events.iter().map(size_of).sum();
        let start = clock::thread_cpu();
        for e in events {
            tree.apply_event(e).expect("a valid event");
        }
        blocks as f64 / (clock::thread_cpu() - start)
    };
    phases.into_iter().map(one).collect()
}

fn update_lanes<T: SyncIndexer>(index: T, count: usize, phases: Vec<Vec<RouterEvent>>) -> Vec<f64> {
    let lanes = Lanes::start(index, count);
    let rates = lanes.apply(phases);
    lanes.stop();
    rates
}

/// An indexer with all stores and documents applied.
pub enum Filled {
    Radix(RadixTree),
    Crtc(Lanes<ConcurrentRadixTreeCompressed>),
    Positional(Lanes<PositionalIndexer>),
}

impl Filled {
    pub fn new(indexer: &str, plan: &Plan, keys: Keys) -> Result<Self, String> {
        let mut events = vec![];
        plan.stores(keys, false, |e| events.push(e));
        plan.documents(keys, |e| events.push(e));
        Ok(match indexer {
            "radix" => {
                let mut tree = RadixTree::new();
                for e in events {
                    tree.apply_event(e).expect("a valid event");
                }
                Self::Radix(tree)
            }
            "crtc" => Self::Crtc(fill(crtc(), events)),
            "positional" => Self::Positional(fill(positional(SearchMode::Strided), events)),
            "positional-binary" => Self::Positional(fill(positional(SearchMode::Binary), events)),
            _ => return Err(format!("no indexer {indexer}")),
        })
    }

    pub fn stop(self) {
        match self {
            Self::Radix(_) => {}
            Self::Crtc(lanes) => lanes.stop(),
            Self::Positional(lanes) => lanes.stop(),
        }
    }

    fn find(&self, keys: &[LocalBlockHash]) -> OverlapScores {
        match self {
            Self::Radix(tree) => tree.find_matches(keys.to_vec(), false),
            Self::Crtc(lanes) => lanes.index.find_matches(keys, false),
            Self::Positional(lanes) => lanes.index.find_matches(keys, false),
        }
    }

    /// Matched workers and their depths in blocks, summed over the queries.
    pub fn sums(&self, set: &QuerySet) -> (u64, u64) {
        let mut sums = (0, 0);
        for i in 0..set.len() {
            let keys = match set {
                QuerySet::Given(keys) => keys[i].clone(),
                QuerySet::Tokens(tokens) => hash_tokens(&tokens[i]),
            };
            let found = self.find(&keys);
            sums.0 += found.scores.len() as u64;
            sums.1 += found.scores.values().map(|&depth| u64::from(depth)).sum::<u64>();
        }
        sums
    }

    /// Call times of lookups, for about `cpu` seconds of CPU time.
    pub fn lookup(&self, set: &QuerySet, cpu: f64) -> Summary {
        match (self, set) {
            // RadixTree takes its keys by value. Copying them is not on the clock.
            (Self::Radix(tree), QuerySet::Given(keys)) => times(keys, cpu, Vec::clone, |k| tree.find_matches(k, false)),
            (Self::Radix(tree), QuerySet::Tokens(tokens)) => {
                times(tokens, cpu, |t| t, |t| tree.find_matches(hash_tokens(t), false))
            }
            (Self::Crtc(lanes), _) => lookup_in(&*lanes.index, set, cpu),
            (Self::Positional(lanes), _) => lookup_in(&*lanes.index, set, cpu),
        }
    }

    /// Lookups per CPU second, summed over threads that run at once.
    pub fn rate(&self, set: &QuerySet, threads: usize, cpu: f64) -> Result<f64, String> {
        match self {
            Self::Radix(_) => Err("RadixTree serves one thread".into()),
            Self::Crtc(lanes) => Ok(rate_of(&*lanes.index, set, threads, cpu)),
            Self::Positional(lanes) => Ok(rate_of(&*lanes.index, set, threads, cpu)),
        }
    }

    /// CPU seconds to clear one worker.
    pub fn clear(&mut self, worker: u64) -> f64 {
        let event = workload::cleared(worker);
        match self {
            Self::Radix(tree) => {
                let start = clock::thread_cpu();
                tree.apply_event(event).expect("a valid event");
                clock::thread_cpu() - start
            }
            Self::Crtc(lanes) => lanes.apply_one(event),
            Self::Positional(lanes) => lanes.apply_one(event),
        }
    }
}

fn fill<T: SyncIndexer>(index: T, events: Vec<RouterEvent>) -> Lanes<T> {
    let lanes = Lanes::start(index, 2);
    lanes.apply(vec![events]);
    lanes
}

/// Queries of one kind: made keys, or tokens of which keys are made on the clock.
pub enum QuerySet {
    Given(Vec<Vec<LocalBlockHash>>),
    Tokens(Vec<Vec<u32>>),
}

impl QuerySet {
    pub fn new(queries: &[Vec<u64>], keys: Keys) -> Self {
        match keys {
            Keys::Given => Self::Given(queries.iter().map(|q| keys.of(q)).collect()),
            Keys::FromTokens => Self::Tokens(queries.iter().map(|q| all_tokens(q)).collect()),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Given(keys) => keys.len(),
            Self::Tokens(tokens) => tokens.len(),
        }
    }
}

fn lookup_in<T: SyncIndexer>(index: &T, set: &QuerySet, cpu: f64) -> Summary {
    match set {
        QuerySet::Given(keys) => times(keys, cpu, |k| k, |k| index.find_matches(k, false)),
        QuerySet::Tokens(tokens) => times(tokens, cpu, |t| t, |t| index.find_matches(&hash_tokens(t), false)),
    }
}

/// Times `call` on each query in turn; making the argument is not on the clock,
/// dropping the answer is.
fn times<'q, Q, A>(queries: &'q [Q], cpu: f64, argument: impl Fn(&'q Q) -> A, call: impl Fn(A) -> OverlapScores) -> Summary {
    let started = Instant::now();
    for q in queries {
        drop(black_box(call(argument(q))));
    }
    let each = clock::since(started) / queries.len() as u32;
    let batch = (50_000 / each.max(1)).clamp(1, 16) as usize;
    let mut samples = Samples::new(1 << 20);
    let mut order = queries.iter().cycle();
    let start = clock::thread_cpu();
    while clock::thread_cpu() - start < cpu && !samples.full() {
        samples.batch(batch, || {
            let a = argument(order.next().expect("a cycle"));
            let start = Instant::now();
            drop(black_box(call(a)));
            clock::since(start)
        });
    }
    samples.summary()
}

fn rate_of<T: SyncIndexer>(index: &T, set: &QuerySet, threads: usize, cpu: f64) -> f64 {
    let call = |i: usize| match set {
        QuerySet::Given(keys) => index.find_matches(&keys[i % keys.len()], false),
        QuerySet::Tokens(tokens) => index.find_matches(&hash_tokens(&tokens[i % tokens.len()]), false),
    };
    let gate = Barrier::new(threads);
    let one = |thread: usize| {
        gate.wait();
        let first = thread * set.len() / threads;
        let (mut done, start) = (0, clock::thread_cpu());
        loop {
            for _ in 0..32 {
                drop(black_box(call(first + done)));
                done += 1;
            }
            let used = clock::thread_cpu() - start;
            if used > cpu {
                return done as f64 / used;
            }
        }
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|t| scope.spawn({ let one = &one; move || one(t) })).collect();
        running.into_iter().map(|r| r.join().expect("a reader")).sum()
    })
}

/// Lookups of `set` while one lane applies the second half of the stores: one
/// every `pace`, or without a pause if that is zero. Returns the lookups and the
/// lane's blocks per CPU second.
pub fn mixed(indexer: &str, plan: &Plan, set: &QuerySet, pace: Duration, repeats: usize) -> Result<(Summary, f64), String> {
    match indexer {
        "crtc" => Ok(mixed_on(crtc, plan, set, pace, repeats)),
        "positional" => Ok(mixed_on(|| positional(SearchMode::Strided), plan, set, pace, repeats)),
        _ => Err(format!("no {indexer} with readers beside a writer")),
    }
}

fn mixed_on<T: SyncIndexer>(make: impl Fn() -> T, plan: &Plan, set: &QuerySet, pace: Duration, repeats: usize) -> (Summary, f64) {
    let QuerySet::Given(queries) = set else { unreachable!("mixed lookups have made keys") };
    let mut samples = Samples::new(1 << 20);
    let mut rate = 0.0;
    let mut order = queries.iter().cycle();
    for _ in 0..repeats {
        let mut first = vec![];
        plan.stores(Keys::Given, false, |e| first.push(e));
        let second = first.split_off(first.len() / 2);
        let lanes = Lanes::start(make(), 1);
        lanes.apply(vec![first]);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let rates = lanes.apply(vec![second]);
                done.store(true, Ordering::Relaxed);
                rates[0]
            });
            let mut due = Instant::now();
            while !done.load(Ordering::Relaxed) && !samples.full() {
                if Instant::now() < due {
                    std::hint::spin_loop();
                    continue;
                }
                due += pace;
                samples.batch(if pace.is_zero() { 16 } else { 1 }, || {
                    let keys = order.next().expect("a cycle");
                    let start = Instant::now();
                    drop(black_box(lanes.index.find_matches(keys, false)));
                    clock::since(start)
                });
            }
            rate += writer.join().expect("the writer") / repeats as f64;
        });
        lanes.stop();
    }
    (samples.summary(), rate)
}

/// Microseconds per block to evict a chain of `length` blocks from every second
/// of 32 workers in events of `batch`, before and after the other lane has put
/// a branch at every fourth block of it.
pub fn split(length: usize, batch: usize) -> (f64, f64) {
    const WORKERS: u64 = 32;
    let blocks: Vec<u64> = (0..length).map(|i| workload::block(5, 0, i)).collect();
    let chain = Chain::new(Keys::Given.of(&blocks));
    let evicted: Vec<u64> = chain.hashes.iter().rev().copied().collect();
    let cost = |branches: bool| {
        let lanes = Lanes::start(crtc(), 2);
        lanes.apply(vec![(0..WORKERS).map(|w| chain.stored(w, 0, 0..length)).collect()]);
        if branches {
            let branch = |(k, at): (usize, usize)| {
                let local = LocalBlockHash(workload::block(6, k as u64, 0));
                let block = workload::stored_block(local, workload::block(7, k as u64, 0));
                workload::stored(0, 1, Some(chain.hashes[at - 1]), vec![block])
            };
            lanes.apply(vec![(4..=length - 4).rev().step_by(4).enumerate().map(branch).collect()]);
        }
        let removes = (1..WORKERS).step_by(2).flat_map(|w| evicted.chunks(batch).map(move |some| workload::removed(w, some)));
        let rate = lanes.apply(vec![removes.collect()])[0];
        lanes.stop();
        1e6 / rate
    };
    (cost(false), cost(true))
}

/// Tokens per CPU second: local hashes, and local plus sequence hashes.
pub fn hashing(block: u32, count: usize, cpu: f64) -> (f64, f64) {
    let tokens: Vec<u32> = (0..count as u64).map(|i| (workload::mix(i) % 128_000) as u32).collect();
    let locals = || dynamo_kv_router::compute_block_hash_for_seq(&tokens, block, Default::default());
    let rate = |call: &dyn Fn()| {
        let (mut done, start) = (0, clock::thread_cpu());
        loop {
            for _ in 0..4 {
                call();
            }
            done += 4 * count;
            let used = clock::thread_cpu() - start;
            if used > cpu {
                return done as f64 / used;
            }
        }
    };
    let local = rate(&|| drop(black_box(locals())));
    let both = rate(&|| drop(black_box(compute_seq_hash_for_block(&locals()))));
    (local, both)
}
