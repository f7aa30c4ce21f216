//! Writer lanes: the loop of the crate's own thread pool (`SyncIndexer::worker`)
//! on threads whose CPU time is read at exact places in their queues.

use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::JoinHandle;

use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::RouterEvent;
use tokio::sync::oneshot;

use crate::clock;
use crate::workload::size_of;

pub struct Lanes<T: SyncIndexer> {
    pub index: Arc<T>,
    queues: Vec<flume::Sender<WorkerTask>>,
    threads: Vec<JoinHandle<()>>,
}

/// A place in a lane's queue. The indexer answers a flush on the lane's own
/// thread, which runs the waker of whoever waits for it: here that reads the
/// thread's clock, and waits until all lanes have come to the same place.
struct Mark {
    gate: Arc<Barrier>,
    passed: Mutex<Option<Passed>>,
    set: Condvar,
}

/// The lane's CPU seconds before and after it waited at a mark.
#[derive(Clone, Copy)]
struct Passed {
    came: f64,
    left: f64,
}

impl Wake for Mark {
    fn wake(self: Arc<Self>) {
        let came = clock::thread_cpu();
        self.gate.wait();
        *self.passed.lock().unwrap() = Some(Passed { came, left: clock::thread_cpu() });
        self.set.notify_all();
    }
}

impl Mark {
    fn wait(&self) -> Passed {
        let mut passed = self.passed.lock().unwrap();
        loop {
            if let Some(p) = *passed {
                return p;
            }
            passed = self.set.wait(passed).unwrap();
        }
    }
}

/// A mark with what keeps the lane's answer going to it.
type Placed = (Arc<Mark>, oneshot::Receiver<()>);

impl<T: SyncIndexer> Lanes<T> {
    pub fn start(index: T, count: usize) -> Self {
        let index = Arc::new(index);
        let (mut queues, mut threads) = (vec![], vec![]);
        for _ in 0..count {
            let (queue, tasks) = flume::unbounded();
            let index = index.clone();
            queues.push(queue);
            threads.push(std::thread::spawn(move || index.worker(tasks, None).expect("the lane's loop")));
        }
        Self { index, queues, threads }
    }

    /// Applies the phases one after the other and returns the blocks per CPU
    /// second of each, summed over the lanes. All events are in the queues before
    /// the first is applied; freeing them is on the lane's clock.
    pub fn apply(&self, phases: Vec<Vec<RouterEvent>>) -> Vec<f64> {
        let count = self.queues.len();
        let mut marks = vec![self.mark_all()];
        let mut blocks = vec![];
        for events in phases {
            let mut sizes = vec![0; count];
            for e in events {
                let lane = e.worker_id as usize % count;
                sizes[lane] += size_of(&e);
                self.queues[lane].send(WorkerTask::Event(e)).expect("the lane runs");
            }
            blocks.push(sizes);
            marks.push(self.mark_all());
        }
        for row in &marks {
            row[0].0.gate.wait();
        }
        let passed: Vec<Vec<Passed>> = marks.iter().map(|row| row.iter().map(|(m, _)| m.wait()).collect()).collect();
        let rate = |phase: usize, lane: usize| {
            let seconds = passed[phase + 1][lane].came - passed[phase][lane].left;
            blocks[phase][lane] as f64 / seconds
        };
        (0..blocks.len()).map(|phase| (0..count).filter(|&l| blocks[phase][l] > 0).map(|l| rate(phase, l)).sum()).collect()
    }

    /// Applies one event on its lane and returns the lane's CPU seconds for it.
    pub fn apply_one(&self, e: RouterEvent) -> f64 {
        let lane = e.worker_id as usize % self.queues.len();
        let before = self.mark(lane, &Arc::new(Barrier::new(2)));
        self.queues[lane].send(WorkerTask::Event(e)).expect("the lane runs");
        let after = self.mark(lane, &Arc::new(Barrier::new(2)));
        before.0.gate.wait();
        after.0.gate.wait();
        after.0.wait().came - before.0.wait().left
    }

    fn mark_all(&self) -> Vec<Placed> {
        let gate = Arc::new(Barrier::new(self.queues.len() + 1));
        (0..self.queues.len()).map(|lane| self.mark(lane, &gate)).collect()
    }

    fn mark(&self, lane: usize, gate: &Arc<Barrier>) -> Placed {
        let mark = Arc::new(Mark { gate: gate.clone(), passed: Mutex::new(None), set: Condvar::new() });
        let (answer, mut waiting) = oneshot::channel();
        let waker = Waker::from(mark.clone());
        let polled = std::future::Future::poll(std::pin::Pin::new(&mut waiting), &mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "nothing has answered yet");
        self.queues[lane].send(WorkerTask::Flush(answer)).expect("the lane runs");
        (mark, waiting)
    }

    /// Ends the threads; the index is freed with the last user.
    pub fn stop(self) {
        for q in &self.queues {
            q.send(WorkerTask::Terminate).expect("the lane runs");
        }
        for t in self.threads {
            t.join().expect("the lane ended well");
        }
    }
}
