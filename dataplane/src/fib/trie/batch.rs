//! Look-ups of a batch, level by level, so that they wait for memory together.
//!
//! ```text
//!   all roots --> all nodes of blocks --> all leaves of blocks --> all tops of chunks --> ...
//! ```
//!
//! In each level, a look-up reads what it has prefetched in the level before, and prefetches what
//! it reads in the next level.

use super::{Block, Chunk, Key, NO_LEAF, NODE_BITS, NODE_SLOTS, Node, Trie};
use crate::forward::LOOK_UPS_MAX;
use pollux_mem::prefetch::prefetch;

#[derive(Clone, Copy, Default)]
struct LookUps(u32);

/// The leaves of the longest prefixes found so far, by look-up.
pub(in crate::fib) type Leaves = [u32; LOOK_UPS_MAX];

struct Descent<'a, K> {
    /// The remaining bits of the addresses.
    keys: [K; LOOK_UPS_MAX],
    nodes: [&'a Node; LOOK_UPS_MAX],
    /// Leaves that are not loaded yet.
    leaves: [&'a u32; LOOK_UPS_MAX],
    /// Chunks below blocks and below other chunks.
    chunks: [Option<&'a Chunk>; LOOK_UPS_MAX],
}

const NO_NODE: Node = Node { inner: 0, changes: 0, leaves: 0, children: 0 };

impl LookUps {
    const NONE: Self = Self(0);

    #[inline]
    const fn insert(&mut self, nth: usize) {
        self.0 |= 1 << nth;
    }

    const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Iterator for LookUps {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let nth = self.0.trailing_zeros() as usize;
        self.0 &= self.0.wrapping_sub(1);
        (nth < LOOK_UPS_MAX).then_some(nth)
    }
}

impl Trie {
    /// Finds the leaves of the longest prefixes of addresses, each with its index in the batch.
    #[inline]
    pub(in crate::fib) fn look_up_all<K: Key>(
        &self,
        keys: impl Iterator<Item = (usize, K)>,
        found: &mut Leaves,
    ) {
        let mut descent = Descent::new();
        let (mut blocks, mut below) = ([None; LOOK_UPS_MAX], LookUps::NONE);
        for (nth, mut key) in keys {
            let page = &self.root[key.take::<NODE_BITS>()];
            let slot = &page[key.take::<NODE_BITS>()];
            found[nth] = longer(slot.leaf, self.default);
            if let Some(block) = &slot.block {
                let node = &block.nodes[key.take::<NODE_BITS>() % NODE_SLOTS];
                prefetch(node);
                prefetch(&block.below);
                blocks[nth] = Some(&**block);
                (descent.nodes[nth], descent.keys[nth]) = (node, key);
                below.insert(nth);
            }
        }
        if !below.is_empty() {
            let mut deeper = descent.pass_blocks(&blocks, below, found);
            while !deeper.is_empty() {
                deeper = descent.pass_chunks(deeper, found);
            }
        }
    }
}

impl<'a, K: Key> Descent<'a, K> {
    #[inline]
    fn new() -> Self {
        Self {
            keys: [K::default(); LOOK_UPS_MAX],
            nodes: [&NO_NODE; LOOK_UPS_MAX],
            leaves: [&NO_LEAF; LOOK_UPS_MAX],
            chunks: [None; LOOK_UPS_MAX],
        }
    }

    /// Takes each look-up through a block; returns the look-ups that continue in a chunk.
    #[inline]
    fn pass_blocks(
        &mut self,
        blocks: &[Option<&'a Block>; LOOK_UPS_MAX],
        all: LookUps,
        found: &mut Leaves,
    ) -> LookUps {
        let mut deeper = LookUps::NONE;
        for nth in all {
            let Some(block) = blocks[nth] else { continue };
            let (node, slot) = (self.nodes[nth], self.keys[nth].take::<NODE_BITS>());
            self.leaves[nth] = &block.below.leaves[node.leaf(slot)];
            prefetch(self.leaves[nth]);
            if let Some(chunk) = node.child(slot) {
                self.chunks[nth] = Some(&block.below.chunks[chunk]);
                deeper.insert(nth);
            }
        }
        self.read_leaves(all, found);
        deeper
    }

    /// Takes each look-up through a chunk; returns the look-ups that continue in another one.
    ///
    /// Why only the first two levels of a chunk are passed together: a chunk has few nodes below
    /// them.
    fn pass_chunks(&mut self, all: LookUps, found: &mut Leaves) -> LookUps {
        for nth in all {
            self.chunks[nth].into_iter().for_each(prefetch);
        }
        let (mut ended, mut inside) = (LookUps::NONE, LookUps::NONE);
        for nth in all {
            let Some(chunk) = self.chunks[nth] else { continue };
            let slot = self.keys[nth].take::<NODE_BITS>();
            if let Some(child) = chunk.top.child(slot) {
                self.nodes[nth] = &chunk.nodes[child];
                prefetch(self.nodes[nth]);
                inside.insert(nth);
            } else {
                self.leaves[nth] = &chunk.below.leaves[chunk.top.leaf(slot)];
                prefetch(self.leaves[nth]);
                ended.insert(nth);
            }
        }
        let mut deeper = LookUps::NONE;
        for nth in inside {
            let Some(chunk) = self.chunks[nth] else { continue };
            let mut key = self.keys[nth];
            let (leaf, below) = chunk.look_up_from(self.nodes[nth], &mut key);
            found[nth] = longer(leaf, found[nth]);
            if below.is_some() {
                (self.chunks[nth], self.keys[nth]) = (below, key);
                deeper.insert(nth);
            }
        }
        self.read_leaves(ended, found);
        deeper
    }

    #[inline]
    fn read_leaves(&self, all: LookUps, found: &mut Leaves) {
        for nth in all {
            found[nth] = longer(*self.leaves[nth], found[nth]);
        }
    }
}

/// The leaf of the longer prefix, or that of the shorter one if the longer has none.
#[inline]
const fn longer(leaf: u32, shorter: u32) -> u32 {
    if leaf == NO_LEAF { shorter } else { leaf }
}
