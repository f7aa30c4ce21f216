//! CPU time, preemption and order statistics.

use std::time::Instant;

/// CPU seconds that the calling thread has used.
pub fn thread_cpu() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: t is a valid place for the answer; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// How often another thread was given the calling thread's core.
pub fn preemptions() -> i64 {
    // SAFETY: an all-zero rusage is valid, and the call only fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nivcsw
    }
}

/// Call times in nanoseconds, without those taken while the thread was off its core.
pub struct Samples {
    kept: Vec<u32>,
    batches: usize,
    dropped: usize,
}

/// What is said of a set of call times.
pub struct Summary {
    pub p50: u32,
    pub p99: u32,
    pub mean: f64,
    /// Share of batches that were not preempted.
    pub kept: f64,
    pub calls: usize,
}

impl Samples {
    /// Room for `limit` calls, every page of it touched.
    pub fn new(limit: usize) -> Self {
        let mut kept = vec![1; limit];
        kept.clear();
        Self { kept, batches: 0, dropped: 0 }
    }

    pub fn full(&self) -> bool {
        self.kept.len() + 64 > self.kept.capacity()
    }

    /// Times `n` calls; all are forgotten if the thread lost its core meanwhile.
    pub fn batch(&mut self, n: usize, mut call: impl FnMut() -> u32) {
        let before = (self.kept.len(), preemptions());
        for _ in 0..n {
            let ns = call();
            self.kept.push(ns);
        }
        self.batches += 1;
        if preemptions() != before.1 {
            self.kept.truncate(before.0);
            self.dropped += 1;
        }
    }

    pub fn summary(mut self) -> Summary {
        self.kept.sort_unstable();
        let calls = self.kept.len();
        let at = |share: f64| self.kept.get(((calls.max(1) - 1) as f64 * share) as usize).copied().unwrap_or(0);
        Summary {
            p50: at(0.5),
            p99: at(0.99),
            mean: self.kept.iter().map(|&ns| f64::from(ns)).sum::<f64>() / calls.max(1) as f64,
            kept: 1.0 - self.dropped as f64 / self.batches.max(1) as f64,
            calls,
        }
    }
}

/// Nanoseconds since `start`.
pub fn since(start: Instant) -> u32 {
    start.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32
}
