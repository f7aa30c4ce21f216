//! Bytes of a filled indexer, counted at the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

use dynamo_kv_router::indexer::positional::SearchMode;
use dynamo_kv_router::indexer::SyncIndexer;
use dynamo_kv_router::protocols::RouterEvent;
use dynamo_kv_router::RadixTree;

use crate::bench;
use crate::lanes::Lanes;
use crate::workload::{Keys, Plan};

/// The system's allocator, with the bytes in use counted as requested.
pub struct Counting;

static IN_USE: AtomicI64 = AtomicI64::new(0);

// SAFETY: every call goes to System unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        IN_USE.fetch_add(size as i64 - layout.size() as i64, Ordering::Relaxed);
        unsafe { System.realloc(at, layout, size) }
    }
}

/// (bytes in use, resident bytes) that the stores added. Events are made one
/// by one and dropped.
pub fn of(indexer: &str, plan: &Plan) -> Result<(i64, i64), String> {
    let before = now();
    match indexer {
        "radix" => {
            let mut tree = RadixTree::new();
            plan.stores(Keys::Given, false, |e| tree.apply_event(e).expect("a valid event"));
            Ok(grown(before))
        }
        "crtc" => Ok(of_lane(before, bench::crtc(), plan)),
        "positional" => Ok(of_lane(before, bench::positional(SearchMode::Strided), plan)),
        _ => Err(format!("no indexer {indexer}")),
    }
}

fn of_lane<T: SyncIndexer>(before: (i64, i64), index: T, plan: &Plan) -> (i64, i64) {
    let lanes = Lanes::start(index, 1);
    let mut some: Vec<RouterEvent> = vec![];
    plan.stores(Keys::Given, false, |e| {
        some.push(e);
        if some.len() == 256 {
            lanes.apply(vec![std::mem::take(&mut some)]);
        }
    });
    lanes.apply(vec![some]);
    let bytes = grown(before);
    lanes.stop();
    bytes
}

fn now() -> (i64, i64) {
    // SAFETY: it only gives unused memory back.
    unsafe { libc::malloc_trim(0) };
    let pages: i64 = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|s| s.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0);
    (IN_USE.load(Ordering::Relaxed), pages * 4096)
}

fn grown(before: (i64, i64)) -> (i64, i64) {
    let after = now();
    (after.0 - before.0, after.1 - before.1)
}
