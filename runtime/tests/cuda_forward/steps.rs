//! Steps: which rows of which requests are computed together, and where their keys and values lie; and a step's arrays on the device.

use crate::cuda::{Bench, Buffer, Chance, Output};
use std::ops::Range;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::cuda::plan;
use trail_runtime::cuda::plan::attention::{self, Run};
use trail_runtime::model::ModelConfig;

/// A block id that no kernel may follow.
const NO_BLOCK: i32 = 0x0fff_ffff;

/// A request, by all the tokens that are ever fed.
pub(crate) struct Request {
    /// Its row of the block table.
    pub(crate) slot: usize,
    pub(crate) tokens: Vec<u32>,
}

/// Who has which blocks of the pool.
#[derive(Clone)]
pub(crate) struct Pages {
    /// `[slots, max_blocks]`
    pub(crate) table: Vec<i32>,
    pub(crate) max_blocks: usize,
    /// Blocks of the pool.
    pub(crate) blocks: usize,
}

impl Pages {
    /// Room for all tokens of `requests` in `slots` slots, blocks in random order; some are nobody's.
    pub(crate) fn new(chance: &mut Chance, requests: &[Request], slots: usize) -> Pages {
        let blocks_of = |request: &Request| request.tokens.len().div_ceil(BLOCK_TOKENS);
        let needed: usize = requests.iter().map(blocks_of).sum();
        let max_blocks = requests.iter().map(blocks_of).max().unwrap() + 1;
        let blocks = needed + 3;
        let mut free = chance.permutation(blocks);
        let mut table = vec![NO_BLOCK; slots * max_blocks];
        for request in requests {
            let entries = &mut table[request.slot * max_blocks..][..blocks_of(request)];
            entries.fill_with(|| free.pop().unwrap() as i32);
        }
        Pages { table, max_blocks, blocks }
    }
}

/// The rows of one step: decode rows first, then chunks of prompts, then padding.
#[derive(Clone)]
pub(crate) struct Step {
    /// (request, position) of each row; `None`: padding.
    pub(crate) rows: Vec<Option<(usize, usize)>>,
    pub(crate) token: Vec<i32>,
    pub(crate) position: Vec<i32>,
    pub(crate) slot: Vec<i32>,
    /// Rows that stand alone.
    pub(crate) alone: usize,
    pub(crate) runs: Vec<Run>,
    /// Stage row of each row or -1: the rows that stand alone are tapped, the first last.
    pub(crate) tap_row: Vec<i32>,
    /// Rows whose logits are wanted.
    pub(crate) logits: Vec<i32>,
}

impl Step {
    /// `alone`: (request, position); `None`: a padding row. `chunks`: (request, positions). Logits are wanted of rows that stand alone, and of chunks
    /// that reach their request's `prompts` tokens.
    pub(crate) fn new(
        requests: &[Request],
        prompts: &[usize],
        alone: &[Option<(usize, usize)>],
        chunks: &[(usize, Range<usize>)],
        padding: usize,
    ) -> Step {
        let mut rows = alone.to_vec();
        let mut logits: Vec<i32> =
            (0..alone.len()).filter(|&row| alone[row].is_some()).map(|row| row as i32).collect();
        let mut runs = Vec::new();
        for (request, positions) in chunks {
            runs.push(Run {
                first_row: rows.len(),
                rows: positions.len(),
                slot: Some(requests[*request].slot),
                context: positions.start,
            });
            rows.extend(positions.clone().map(|position| Some((*request, position))));
            if positions.end == prompts[*request] {
                logits.push(rows.len() as i32 - 1);
            }
        }
        rows.extend(vec![None; padding]);
        let of = |value: &dyn Fn(usize, usize) -> i32, none: i32| -> Vec<i32> {
            rows.iter().map(|row| row.map_or(none, |(request, at)| value(request, at))).collect()
        };
        let tapped = alone.len() as i32;
        Step {
            // What a padding row names, nobody may look up.
            token: of(&|request, at| requests[request].tokens[at] as i32, NO_BLOCK),
            position: of(&|_, at| at as i32, NO_BLOCK),
            slot: of(&|request, _| requests[request].slot as i32, -1),
            tap_row: (0..rows.len() as i32)
                .map(|row| if row < tapped { tapped - 1 - row } else { -1 })
                .collect(),
            alone: alone.len(),
            rows,
            runs,
            logits,
        }
    }
}

/// The arrays of a step on the device.
pub(crate) struct Rows {
    pub(crate) position: Buffer,
    pub(crate) slot: Buffer,
    pub(crate) tap_row: Buffer,
    pub(crate) runs: Buffer,
    pub(crate) tiles: Buffer,
    /// Tiles in `tiles`.
    pub(crate) tile_count: usize,
    /// The residual stream `[T, d]` f32, the next operand `[T, d]` bf16, and partial sums of squares `[T, parts]` f32.
    pub(crate) h: Output,
    pub(crate) x: Output,
    pub(crate) ss: Output,
    /// Queries, and what they attend to `[T, heads, head_dim]` bf16.
    pub(crate) q: Output,
    pub(crate) attended: Output,
    /// The MLP's inner values `[T, ff]` bf16.
    pub(crate) inner: Output,
    /// Stage of the tap, with a row more than are tapped `[stage rows, d]` bf16.
    pub(crate) stage: Output,
}

impl Rows {
    pub(crate) fn new(bench: &Bench, config: &ModelConfig, step: &Step) -> Rows {
        let (count, d) = (step.rows.len(), config.hidden_size);
        let encoded: Vec<[i32; 4]> = step.runs.iter().map(Run::encode).collect();
        let mut tiles = Vec::new();
        let group = config.num_heads / config.num_kv_heads;
        attention::prefill_tiles(&step.runs, group, &mut tiles);
        Rows {
            position: bench.input(&step.position),
            slot: bench.input(&step.slot),
            tap_row: bench.input(&step.tap_row),
            runs: bench.input(encoded.as_flattened()),
            tiles: bench.input(tiles.as_flattened()),
            tile_count: tiles.len(),
            h: bench.output(count * d * 4),
            x: bench.output(count * d * 2),
            ss: bench.output(count * plan::step::parts(d) * 4),
            q: bench.output(count * config.q_size() * 2),
            attended: bench.output(count * config.q_size() * 2),
            inner: bench.output(count * config.intermediate_size * 2),
            stage: bench.output((step.alone + 1) * d * 2),
        }
    }
}
