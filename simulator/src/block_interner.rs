//! Hashes of prompts' blocks for simulations: numbers in order of first occurrence.

use std::collections::HashMap;

use trail_scheduler::BLOCK_TOKENS;

/// Gives full blocks of equal tokens, after equal blocks, the same number.
#[derive(Debug, Default)]
pub struct BlockInterner(HashMap<(u64, Vec<u32>), u64>);

impl BlockInterner {
    /// The numbers of the full blocks of `prompt`, from 1 on.
    pub fn hashes(&mut self, prompt: &[u32]) -> Vec<u64> {
        let mut before = 0;
        let blocks = prompt.chunks_exact(BLOCK_TOKENS as usize);
        blocks
            .map(|tokens| {
                let next = self.0.len() as u64 + 1;
                before = *self.0.entry((before, tokens.to_vec())).or_insert(next);
                before
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_all_tokens_up_to_the_end_of_its_block() {
        let mut interner = BlockInterner::default();
        let prompt: Vec<u32> = (0..40).collect();
        assert_eq!(interner.hashes(&prompt), [1, 2]);
        assert_eq!(interner.hashes(&prompt[..32]), [1, 2]);
        let other: Vec<u32> = (100..116).chain(16..32).collect();
        assert_eq!(interner.hashes(&other), [3, 4], "equal tokens after other ones");
        assert!(interner.hashes(&prompt[..15]).is_empty());
    }
}
