//! The workload: conversations on workers, their events, and the queries. The Go
//! side makes the same one; the sums that `sums` prints must agree.

use std::collections::{HashMap, HashSet};

use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent, compute_block_hash_for_seq, compute_seq_hash_for_block,
};

pub const BLOCK_TOKENS: u32 = 16;
pub const PREFIX: usize = 32;
const FAMILIES: u64 = 2000;
const HOT_FAMILIES: u64 = 20;
const TARGET: usize = 1_000_000;
const WAVE: usize = 256;
const DOCUMENTS: u64 = 8;
const DOCUMENT: usize = 8192;
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// What a block's number stands for.
const IN_PREFIX: u64 = 1;
const IN_BODY: u64 = 2;
const IN_DOCUMENT: u64 = 3;
const UNKNOWN: u64 = 4;

pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(GOLDEN);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

struct Random {
    state: u64,
}

impl Random {
    fn next(&mut self) -> u64 {
        let value = mix(self.state);
        self.state = self.state.wrapping_add(GOLDEN);
        value
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

pub fn block(kind: u64, id: u64, position: usize) -> u64 {
    mix(kind << 60 | id << 24 | position as u64)
}

/// The tokens of a block, where keys are made from tokens.
pub fn tokens_of(block: u64) -> impl Iterator<Item = u32> {
    (0..u64::from(BLOCK_TOKENS)).map(move |j| (mix(block.wrapping_add(j)) % 128_000) as u32)
}

/// How a block of the workload becomes the indexer's key.
#[derive(Clone, Copy, PartialEq)]
pub enum Keys {
    /// The block's number is its local hash.
    Given,
    /// The local hash is made from the block's 16 tokens.
    FromTokens,
}

impl Keys {
    pub fn of(self, blocks: &[u64]) -> Vec<LocalBlockHash> {
        match self {
            Self::Given => blocks.iter().map(|&b| LocalBlockHash(b)).collect(),
            Self::FromTokens => hash_tokens(&all_tokens(blocks)),
        }
    }
}

pub fn hash_tokens(tokens: &[u32]) -> Vec<LocalBlockHash> {
    compute_block_hash_for_seq(tokens, BLOCK_TOKENS, BlockHashOptions::default())
}

pub fn all_tokens(blocks: &[u64]) -> Vec<u32> {
    blocks.iter().flat_map(|&b| tokens_of(b)).collect()
}

struct Conversation {
    id: u64,
    family: u64,
    worker: u64,
    length: usize,
    turns: Vec<usize>,
    /// The worker had the family's prefix from an earlier conversation.
    warm: bool,
}

impl Conversation {
    fn blocks(&self) -> Vec<u64> {
        let prefix = (0..PREFIX).map(|i| block(IN_PREFIX, self.family, i));
        prefix.chain((PREFIX..self.length).map(|i| block(IN_BODY, self.id, i))).collect()
    }
}

pub struct Plan {
    pub workers: u64,
    conversations: Vec<Conversation>,
    /// (block, worker) pairs after all stores.
    pub memberships: usize,
    pub distinct: usize,
}

impl Plan {
    pub fn new(workers: u64) -> Self {
        let mut random = Random { state: 42 };
        let (mut warm, mut families) = (HashSet::new(), HashSet::new());
        let mut plan = Self { workers, conversations: vec![], memberships: 0, distinct: 0 };
        while plan.memberships < TARGET {
            let hot = random.next() % 2 == 0;
            let family = random.below(if hot { HOT_FAMILIES } else { FAMILIES });
            let worker = random.below(workers);
            let length = 64 + random.below(193) as usize;
            let mut turns = vec![];
            let mut left = length - PREFIX;
            while left > 0 {
                let turn = left.min(4 + random.below(29) as usize);
                turns.push(turn);
                left -= turn;
            }
            let is_warm = !warm.insert((worker, family));
            families.insert(family);
            plan.memberships += length - if is_warm { PREFIX } else { 0 };
            plan.distinct += length - PREFIX;
            let id = plan.conversations.len() as u64;
            plan.conversations.push(Conversation { id, family, worker, length, turns, warm: is_warm });
        }
        plan.distinct += families.len() * PREFIX;
        plan
    }

    pub fn conversations(&self) -> usize {
        self.conversations.len()
    }

    /// Gives all store events in order. With `singles` the last quarter of each
    /// turn comes block by block, as while decoding.
    pub fn stores(&self, keys: Keys, singles: bool, mut give: impl FnMut(RouterEvent)) {
        let mut numbers = HashMap::<u64, u64>::new();
        for wave in self.conversations.chunks(WAVE) {
            let chains: Vec<Chain> = wave.iter().map(|c| Chain::new(keys.of(&c.blocks()))).collect();
            let mut ends = vec![PREFIX; wave.len()];
            let turns = wave.iter().map(|c| c.turns.len()).max().unwrap_or(0);
            for turn in 0..turns {
                for ((c, chain), end) in wave.iter().zip(&chains).zip(&mut ends) {
                    let Some(&size) = c.turns.get(turn) else { continue };
                    let from = if turn == 0 && !c.warm { 0 } else { *end };
                    *end += size;
                    let single = if singles { size / 4 } else { 0 };
                    let number = numbers.entry(c.worker).or_default();
                    let whole = *end - single;
                    let pieces = std::iter::once(from..whole).chain((whole..*end).map(|i| i..i + 1));
                    for piece in pieces {
                        give(chain.stored(c.worker, *number, piece));
                        *number += 1;
                    }
                }
            }
        }
    }

    /// Gives the events that evict the first half of the conversations, each from
    /// its tail, without the prefixes.
    pub fn removes(&self, mut give: impl FnMut(RouterEvent)) {
        for c in &self.conversations[..self.conversations.len() / 2] {
            let mut own = Chain::new(Keys::Given.of(&c.blocks())).hashes.split_off(PREFIX);
            own.reverse();
            for some in own.chunks(16) {
                give(removed(c.worker, some));
            }
        }
    }

    /// Gives the store events of the long documents that only queries need.
    pub fn documents(&self, keys: Keys, mut give: impl FnMut(RouterEvent)) {
        for d in 0..DOCUMENTS {
            let chain = Chain::new(keys.of(&document(d)));
            for j in 0..4 {
                let held = DOCUMENT - 512 * j as usize;
                for from in (0..held).step_by(512) {
                    give(chain.stored((4 * d + j) % self.workers, 0, from..held.min(from + 512)));
                }
            }
        }
    }

    /// The queries by name, as the blocks of their prompts.
    pub fn queries(&self) -> Vec<(&'static str, Vec<Vec<u64>>)> {
        let mut random = Random { state: 7 };
        let mut asked = 0;
        let mut sets = vec![];
        for (name, length, count) in [("q16", 16, 4096), ("q128", 128, 4096), ("q1024", 1024, 1024), ("q8192", 8192, 256)] {
            let set = (0..count).map(|_| {
                let c = &self.conversations[random.below(self.conversations.len() as u64) as usize];
                asked += 1;
                let mut blocks = c.blocks();
                blocks.truncate(length);
                blocks.extend((blocks.len()..length).map(|i| block(UNKNOWN, asked, i)));
                blocks
            });
            sets.push((name, set.collect()));
        }
        sets.push(("deep1024", (0..DOCUMENTS).map(|d| document(d)[..1024].to_vec()).collect()));
        sets.push(("deep8192", (0..DOCUMENTS).map(document).collect()));
        let miss = (0..4096).map(|k| (0..128).map(|i| block(UNKNOWN, 1_000_000 + k, i)).collect());
        sets.push(("miss", miss.collect()));
        sets
    }
}

fn document(d: u64) -> Vec<u64> {
    (0..DOCUMENT).map(|i| block(IN_DOCUMENT, d, i)).collect()
}

/// A prompt's local hashes with the hashes that name each block with its past.
pub struct Chain {
    locals: Vec<LocalBlockHash>,
    pub hashes: Vec<u64>,
}

impl Chain {
    pub fn new(locals: Vec<LocalBlockHash>) -> Self {
        let hashes = compute_seq_hash_for_block(&locals);
        Self { locals, hashes }
    }

    pub fn stored(&self, worker: u64, number: u64, at: std::ops::Range<usize>) -> RouterEvent {
        let parent = at.start.checked_sub(1).map(|i| self.hashes[i]);
        let blocks = at.map(|i| stored_block(self.locals[i], self.hashes[i])).collect();
        stored(worker, number, parent, blocks)
    }
}

pub fn stored_block(local: LocalBlockHash, hash: u64) -> KvCacheStoredBlockData {
    KvCacheStoredBlockData { block_hash: ExternalSequenceBlockHash(hash), tokens_hash: local, mm_extra_info: None }
}

pub fn stored(worker: u64, number: u64, parent: Option<u64>, blocks: Vec<KvCacheStoredBlockData>) -> RouterEvent {
    let data = KvCacheStoreData { parent_hash: parent.map(ExternalSequenceBlockHash), start_position: None, blocks };
    event(worker, number, KvCacheEventData::Stored(data))
}

pub fn removed(worker: u64, hashes: &[u64]) -> RouterEvent {
    let block_hashes = hashes.iter().map(|&h| ExternalSequenceBlockHash(h)).collect();
    event(worker, 1 << 40, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }))
}

pub fn cleared(worker: u64) -> RouterEvent {
    event(worker, 1 << 41, KvCacheEventData::Cleared)
}

fn event(worker: u64, event_id: u64, data: KvCacheEventData) -> RouterEvent {
    RouterEvent::new(worker, KvCacheEvent { event_id, data, dp_rank: 0 })
}

/// Blocks that an event stores or removes.
pub fn size_of(e: &RouterEvent) -> usize {
    match &e.event.data {
        KvCacheEventData::Stored(s) => s.blocks.len(),
        KvCacheEventData::Removed(r) => r.block_hashes.len(),
        KvCacheEventData::Cleared => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_agreed_ones() {
        assert_eq!(mix(0), 16_294_208_416_658_607_535);
        assert_eq!(mix(42), 13_679_457_532_755_275_413);
        assert_eq!(block(1, 0, 0), 10_427_778_489_764_412_663);
        assert_eq!(block(4, 1, 128), 3_727_278_507_965_030_721);
        let plan = Plan::new(32);
        assert_eq!((plan.conversations(), plan.memberships, plan.distinct), (6875, 1_000_172, 925_836));
        let first = &plan.conversations[0];
        assert_eq!((first.family, first.worker, first.length), (291, 18, 205));
        assert_eq!(first.turns, [19, 19, 16, 32, 4, 7, 31, 31, 14]);
        let chain = Chain::new(Keys::Given.of(&first.blocks()));
        assert_eq!(chain.hashes.last(), Some(&8_611_020_669_470_401_522));
    }
}
