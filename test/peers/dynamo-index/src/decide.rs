//! The whole decision: `SelectionCore` in this process, without HTTP.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dynamo_kv_router::config::KvRouterConfig;
use dynamo_kv_router::identity::RoutingPartitionId;
use dynamo_kv_router::protocols::RoutingConstraints;
use dynamo_kv_router::services::selection::{
    PromptRequest, SelectAndReserveRequest, SelectionCacheConfig, SelectionCore, WorkerRequest,
};
use dynamo_kv_router::WorkerSelectionPolicy;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::clock::{self, Samples, Summary};
use crate::workload::{self, hash_tokens, Chain, BLOCK_TOKENS};

const PROMPTS: u64 = 16;

/// Call times of select_and_reserve, and CPU seconds of a select with its free:
/// of this thread, which does all of both; the threads of the event subscribers
/// are left out.
/// With one indexer thread it looks up on that one, in a RadixTree; with
/// more (its default is 4) on the caller's, in the concurrent tree.
pub fn run(workers: u64, tokens: usize, indexer_threads: usize, cpu: f64) -> Result<(Summary, f64), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let core = SelectionCore::try_new_local(
        KvRouterConfig { use_kv_events: true, ..Default::default() },
        indexer_threads,
        CancellationToken::new(),
        SelectionCacheConfig::default(),
        Arc::new(|config, role, _| WorkerSelectionPolicy::reference(config.clone(), role.default_selector_label())),
    )
    .map_err(|e| e.to_string())?;
    let engines = silent_engines().map_err(|e| format!("listen: {e}"))?;
    let prompts: Vec<Vec<u32>> = (0..PROMPTS)
        .map(|p| (0..tokens as u64).map(|i| (workload::mix(p << 32 | i) % 128_000) as u32).collect())
        .collect();
    runtime.block_on(async {
        fill(&core, workers, &prompts, engines).await?;
        tokio::time::sleep(Duration::from_millis(300)).await; // until its event subscribers are connected
        Ok::<(), String>(())
    })?;
    let mut samples = Samples::new(1 << 18);
    let start = clock::thread_cpu();
    let mut done = 0;
    while clock::thread_cpu() - start < cpu && !samples.full() {
        let id = format!("b{done}");
        let request = request(id.clone(), prompts[done % prompts.len()].clone());
        let mut request = Some(request);
        let mut failed = None;
        samples.batch(1, || {
            let start = Instant::now();
            let answer = runtime.block_on(core.select_and_reserve(request.take().expect("asked once")));
            let ns = clock::since(start);
            failed = answer.err().map(|e| e.to_string());
            ns
        });
        if let Some(e) = failed {
            return Err(e);
        }
        runtime.block_on(core.free_reservation(&id)).map_err(|e| e.to_string())?;
        done += 1;
    }
    Ok((samples.summary(), cpu_of_one(&runtime, &core, &prompts, cpu)?))
}

/// CPU seconds of a select with its free, without what times single calls.
fn cpu_of_one(runtime: &Runtime, core: &SelectionCore, prompts: &[Vec<u32>], cpu: f64) -> Result<f64, String> {
    const BATCH: usize = 64;
    let (mut used, mut done) = (0.0, 0);
    while used < cpu {
        let ask = |i: usize| {
            let id = format!("c{i}");
            (id.clone(), request(id, prompts[i % prompts.len()].clone()))
        };
        let asked: Vec<_> = (done..done + BATCH).map(ask).collect();
        let start = clock::thread_cpu();
        for (id, request) in asked {
            runtime.block_on(core.select_and_reserve(request)).map_err(|e| e.to_string())?;
            runtime.block_on(core.free_reservation(&id)).map_err(|e| e.to_string())?;
        }
        used += clock::thread_cpu() - start;
        done += BATCH;
    }
    Ok(used / done as f64)
}

/// An address that takes connections and says nothing, for the event subscribers:
/// with nobody there they would connect again and again beside the measurement.
fn silent_engines() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    // Ends with the process.
    std::thread::spawn(move || listener.incoming().flatten().for_each(std::mem::forget));
    Ok(address)
}

/// Adds the workers and stores each prompt on a quarter of them.
async fn fill(core: &SelectionCore, workers: u64, prompts: &[Vec<u32>], engines: SocketAddr) -> Result<(), String> {
    for id in 1..=workers {
        core.upsert_worker(WorkerRequest {
            worker_id: id,
            endpoint: Some(format!("http://w{id}:8000")),
            kv_events_endpoint: Some(format!("tcp://{engines}")),
            block_size: Some(BLOCK_TOKENS),
            max_num_batched_tokens: Some(8192),
            ..WorkerRequest::default()
        })
        .await
        .map_err(|e| e.to_string())?;
    }
    let partition = core.partition(&RoutingPartitionId::new("default", "default")).ok_or("no partition")?;
    for (p, tokens) in prompts.iter().enumerate() {
        let chain = Chain::new(hash_tokens(tokens));
        for id in (1..=workers).filter(|id| (*id as usize + p) % 4 == 0) {
            let event = chain.stored(id, 1, 0..chain.hashes.len());
            partition.indexer().apply_event_routed(event).await.map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

fn request(id: String, tokens: Vec<u32>) -> SelectAndReserveRequest {
    SelectAndReserveRequest {
        model_name: "default".into(),
        routing_group: "default".into(),
        selection_id: Some(id),
        prompt: PromptRequest { token_ids: Some(tokens), ..Default::default() },
        router_config_override: None,
        expected_output_tokens: None,
        priority_jump: None,
        strict_priority: None,
        session_id: None,
        session_context: None,
        affinity_target: None,
        pinned_worker: None,
        allowed_worker_ids: None,
        routing_constraints: RoutingConstraints::default(),
    }
}
