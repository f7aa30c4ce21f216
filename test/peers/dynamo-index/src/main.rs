//! Runs kvlane's index workload on NVIDIA Dynamo's indexers. Commands come on
//! standard input, one a line; each is answered by JSON lines, the last of which
//! has "end". So the other side of the comparison can alternate with it.

mod bench;
mod clock;
#[cfg(feature = "decide")]
mod decide;
#[cfg_attr(feature = "timing", allow(dead_code))]
mod memory;
mod lanes;
mod workload;

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::time::Duration;

use bench::{Filled, QuerySet};
use clock::Summary;
use workload::{Keys, Plan};

#[cfg(feature = "timing")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
#[cfg(not(feature = "timing"))]
#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

#[derive(Default)]
struct Session {
    plan: Option<Plan>,
    sets: HashMap<(&'static str, bool), QuerySet>,
    filled: Option<(Filled, Keys)>,
}

fn main() {
    keep_pages();
    let mut session = Session::default();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line of text");
        let words: Vec<&str> = line.split_whitespace().collect();
        let end = match session.run(&words) {
            Ok(rows) => rows.into_iter().map(|r| format!("{{{r}}}\n")).collect::<String>() + "{\"end\":true}\n",
            Err(e) => format!("{{\"end\":true,\"error\":\"{}\"}}\n", e.replace(['"', '\\', '\n'], " ")),
        };
        let mut out = std::io::stdout().lock();
        out.write_all(end.as_bytes()).and_then(|()| out.flush()).expect("someone reads");
    }
}

/// mimalloc reads at its start whether to give freed pages back. It must not:
/// touching a new page costs more than what is measured.
fn keep_pages() {
    use std::os::unix::process::CommandExt;
    const SETTING: &str = "MIMALLOC_PURGE_DELAY";
    if cfg!(feature = "timing") && std::env::var_os(SETTING).is_none() {
        let me = std::env::current_exe().expect("own path");
        let e = std::process::Command::new(me).args(std::env::args_os().skip(1)).env(SETTING, "-1").exec();
        panic!("start again with {SETTING}: {e}");
    }
}

type Rows = Result<Vec<String>, String>;

impl Session {
    fn run(&mut self, words: &[&str]) -> Rows {
        match *words {
            ["plan", workers] => self.open(number(workers)?),
            ["update", indexer, lanes, kind] => {
                let rates = bench::update(indexer, number(lanes)?, self.plan()?, kind == "singles")?;
                let remove = rates.get(1).map(|r| format!(",\"remove\":{r:.1}")).unwrap_or_default();
                Ok(vec![format!("\"store\":{:.1}{remove}", rates[0])])
            }
            ["fill", indexer, keys] => self.fill(indexer, keys),
            ["empty"] => {
                self.empty();
                Ok(vec![])
            }
            ["sums"] => self.sums(),
            ["lookup", query, ms] => {
                let (filled, set) = self.asked(query)?;
                Ok(vec![times(&filled.lookup(set, seconds(ms)?))])
            }
            ["rate", query, threads, ms] => {
                let (filled, set) = self.asked(query)?;
                Ok(vec![format!("\"rate\":{:.1}", filled.rate(set, number(threads)?, seconds(ms)?)?)])
            }
            ["mixed", indexer, pace_us, repeats] => self.mixed(indexer, number(pace_us)?, number(repeats)?),
            ["clear", count] => self.clear(number(count)?),
            ["split", length, batch] => {
                let (before, after) = bench::split(number(length)?, number(batch)?);
                Ok(vec![format!("\"before_us\":{before:.4},\"after_us\":{after:.4}")])
            }
            ["hash", block, tokens, ms] => {
                let (local, both) = bench::hashing(number(block)?, number(tokens)?, seconds(ms)?);
                Ok(vec![format!("\"local\":{local:.1},\"sequence\":{both:.1}")])
            }
            #[cfg(feature = "decide")]
            ["decide", workers, tokens, threads, ms] => {
                let (summary, cpu) = decide::run(number(workers)?, number(tokens)?, number(threads)?, seconds(ms)?)?;
                Ok(vec![format!("{},\"cpu_ns\":{:.1}", times(&summary), cpu * 1e9)])
            }
            #[cfg(not(feature = "timing"))]
            ["memory", indexer] => {
                let plan = self.plan()?;
                let (live, resident) = memory::of(indexer, plan)?;
                Ok(vec![format!("\"live\":{live},\"resident\":{resident},\"memberships\":{}", plan.memberships)])
            }
            _ => Err(format!("unknown command: {}", words.join(" "))),
        }
    }

    fn plan(&self) -> Result<&Plan, String> {
        self.plan.as_ref().ok_or_else(|| "first say: plan WORKERS".into())
    }

    fn open(&mut self, workers: u64) -> Rows {
        self.empty();
        self.sets.clear();
        let plan = Plan::new(workers);
        let row = format!(
            "\"conversations\":{},\"memberships\":{},\"distinct\":{}",
            plan.conversations(), plan.memberships, plan.distinct
        );
        self.plan = Some(plan);
        Ok(vec![row])
    }

    fn empty(&mut self) {
        if let Some((filled, _)) = self.filled.take() {
            filled.stop();
        }
    }

    fn fill(&mut self, indexer: &str, keys: &str) -> Rows {
        self.empty();
        let keys = if keys == "tokens" { Keys::FromTokens } else { Keys::Given };
        self.make_sets(keys)?;
        self.filled = Some((Filled::new(indexer, self.plan()?, keys)?, keys));
        Ok(vec![])
    }

    fn make_sets(&mut self, keys: Keys) -> Result<(), String> {
        let tokens = keys == Keys::FromTokens;
        if self.sets.contains_key(&("q16", tokens)) {
            return Ok(());
        }
        for (name, queries) in self.plan()?.queries() {
            self.sets.insert((name, tokens), QuerySet::new(&queries, keys));
        }
        Ok(())
    }

    fn asked(&self, query: &str) -> Result<(&Filled, &QuerySet), String> {
        let (filled, keys) = self.filled.as_ref().ok_or("first say: fill INDEXER KEYS")?;
        let named = |(name, tokens): &&(&'static str, bool)| *name == query && *tokens == (*keys == Keys::FromTokens);
        let key = self.sets.keys().find(named).ok_or_else(|| format!("no query {query}"))?;
        Ok((filled, &self.sets[key]))
    }

    fn sums(&self) -> Rows {
        let mut rows = vec![];
        for query in ["q16", "q128", "q1024", "q8192", "deep1024", "deep8192", "miss"] {
            let (filled, set) = self.asked(query)?;
            let (matched, blocks) = filled.sums(set);
            rows.push(format!("\"query\":\"{query}\",\"queries\":{},\"matched\":{matched},\"blocks\":{blocks}", set.len()));
        }
        Ok(rows)
    }

    fn mixed(&mut self, indexer: &str, pace_us: u64, repeats: usize) -> Rows {
        self.empty();
        self.make_sets(Keys::Given)?;
        let set = &self.sets[&("q128", false)];
        let (summary, rate) = bench::mixed(indexer, self.plan()?, set, Duration::from_micros(pace_us), repeats)?;
        Ok(vec![format!("{},\"store\":{rate:.1}", times(&summary))])
    }

    /// The filled indexer loses its workers 0..count, one after the other.
    fn clear(&mut self, count: u64) -> Rows {
        let (filled, _) = self.filled.as_mut().ok_or("first say: fill INDEXER KEYS")?;
        Ok((0..count).map(|w| format!("\"us\":{:.3}", filled.clear(w) * 1e6)).collect())
    }
}

fn times(s: &Summary) -> String {
    format!("\"p50\":{},\"p99\":{},\"mean\":{:.1},\"kept\":{:.4},\"calls\":{}", s.p50, s.p99, s.mean, s.kept, s.calls)
}

fn number<N: std::str::FromStr>(word: &str) -> Result<N, String> {
    word.parse().map_err(|_| format!("not a number: {word}"))
}

fn seconds(ms: &str) -> Result<f64, String> {
    Ok(number::<f64>(ms)? / 1e3)
}
