//! Longest-prefix match: a multibit trie whose nodes are compressed by bitmaps and popcount, as in
//! Poptrie (Asai and Ohara, SIGCOMM 2015).
//!
//! ```text
//!   root: 4,096 slots     block: 12 bits              chunk: further bits
//!   +---------------+     +--------------------+      +---------------------+
//!   | first 12 bits |---->| 64 nodes by 6 bits |  +-->| top node by 6 bits  |
//!   | leaf, block   |     |   |                |  |   |   |     |           |
//!   +---------------+     |   v 6 bits         |  |   |   |     v 6 bits    |
//!                         | leaf, chunk -------|--+   |   |    node, ...    |
//!                         +--------------------+      |   v     v           |
//!                                                     | leaf, link to chunk |
//!                                                     +---------------------+
//! ```
//!
//! The root and the first nodes of blocks are together a table by the first 18 bits. A chunk has
//! all routes below its prefix if they are few. Otherwise it covers only 12 bits, and links to a
//! further chunk for each slot with longer routes. So the look-up of an IPv6 address mostly reads
//! one chunk.
//!
//! Why blocks and chunks: they are immutable and shared by versions. A new version rebuilds the
//! blocks and chunks that have a changed route, or are above one, and copies the root pages of 64
//! slots that refer to them.
//!
//! Why leaves are pushed down only within a block or chunk: otherwise a short prefix would change
//! all chunks below it. Instead, a look-up keeps the last leaf that it has found, which adds no
//! load to its critical path. The default route is beside the root for the same reason.

mod batch;

use std::sync::Arc;

/// The number of bits of the root, of a block, and of a chunk with links.
pub(super) const CHUNK_BITS: u8 = 12;
pub(super) const NODE_BITS: u8 = 6;

pub(super) const NODE_SLOTS: usize = 1 << NODE_BITS;

pub(super) const NO_LEAF: u32 = 0;

/// An address as an integer, whose first bit is the highest.
pub(super) trait Key: Copy + Default {
    /// Removes and returns the first `BITS` bits.
    fn take<const BITS: u8>(&mut self) -> usize;
}

/// A version of the routes of one family. A clone increments one reference count.
#[derive(Clone)]
pub(super) struct Trie {
    default: u32,
    root: Arc<[Arc<RootPage>; NODE_SLOTS]>,
}

/// The slots of the root with the same first 6 bits, by the next 6 bits. They are copied together.
pub(super) type RootPage = [RootSlot; NODE_SLOTS];

/// A slot of the root: the leaf of the longest prefix of up to 12 bits, and the block below.
#[derive(Clone, Default)]
pub(super) struct RootSlot {
    pub(super) leaf: u32,
    pub(super) block: Option<Arc<Block>>,
}

/// The routes below a prefix of 12 bits, by the next 12 bits.
pub(super) struct Block {
    nodes: [Node; NODE_SLOTS],
    below: Below,
}

/// The routes below a prefix of 24, 36, 48 ... bits.
pub(super) struct Chunk {
    top: Node,
    nodes: Box<[Node]>,
    below: Below,
}

/// The arrays that the nodes of a block or chunk refer to.
struct Below {
    leaves: Box<[u32]>,
    chunks: Box<[Arc<Chunk>]>,
}

/// A block or chunk under construction. Children precede their node.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) nodes: Vec<Node>,
    pub(super) leaves: Vec<u32>,
    pub(super) chunks: Vec<Arc<Chunk>>,
}

/// A node of 64 slots. Neighboring slots with the same leaf share its entry.
#[derive(Clone, Copy, Default)]
pub(super) struct Node {
    /// The slots with children.
    inner: u64,
    /// The slots whose leaf differs from the leaf of the slot before. The first slot is never among
    /// them.
    changes: u64,
    /// The index of the first leaf, or [`LINK`] in a node that links to a chunk.
    leaves: u32,
    /// The index of the first child, which is a node, or a chunk if this node is in a block.
    children: u32,
}

/// The value of `leaves` in a link: then `children` is the index of a chunk, and `changes` the leaf
/// of the link.
const LINK: u32 = u32::MAX;

/// A route whose prefix ends in the bits of a chunk, of a block or of the root.
///
/// Routes are ordered by prefix, and a prefix comes before the longer prefixes in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChunkRoute {
    /// The first slot; the length is in the lowest four bits.
    prefix: u16,
    pub(super) leaf: u32,
}

impl Key for u32 {
    #[inline]
    fn take<const BITS: u8>(&mut self) -> usize {
        let first = *self >> (Self::BITS - u32::from(BITS));
        *self <<= BITS;
        first as usize
    }
}

impl Key for u128 {
    #[inline]
    fn take<const BITS: u8>(&mut self) -> usize {
        let first = *self >> (Self::BITS - u32::from(BITS));
        *self <<= BITS;
        first as usize
    }
}

impl Trie {
    pub(super) fn new(default: u32, root: [Arc<RootPage>; NODE_SLOTS]) -> Self {
        Self { default, root: root.into() }
    }

    pub(super) fn page(&self, top: usize) -> Arc<RootPage> {
        Arc::clone(&self.root[top])
    }

    #[inline]
    pub(super) fn look_up(&self, mut key: impl Key) -> u32 {
        let page = &self.root[key.take::<NODE_BITS>()];
        let slot = &page[key.take::<NODE_BITS>()];
        let mut longest = if slot.leaf == NO_LEAF { self.default } else { slot.leaf };
        let Some(block) = &slot.block else { return longest };
        let (leaf, mut next) = block.look_up(&mut key);
        longest = if leaf == NO_LEAF { longest } else { leaf };
        while let Some(chunk) = next {
            let (leaf, below) = chunk.look_up(&mut key);
            longest = if leaf == NO_LEAF { longest } else { leaf };
            next = below;
        }
        longest
    }
}

impl Block {
    /// A block with these nodes, one for each value of the first 6 bits.
    pub(super) fn new(all: &[Node; NODE_SLOTS], draft: Draft) -> Self {
        Self { nodes: *all, below: Below::new(draft.leaves, draft.chunks) }
    }

    /// The leaf at a slot, and the chunk below it.
    #[inline]
    fn look_up(&self, key: &mut impl Key) -> (u32, Option<&Chunk>) {
        let node = &self.nodes[key.take::<NODE_BITS>() % NODE_SLOTS];
        let slot = key.take::<NODE_BITS>();
        let chunk = node.child(slot).map(|chunk| &*self.below.chunks[chunk]);
        (self.below.leaves[node.leaf(slot)], chunk)
    }
}

impl Chunk {
    pub(super) fn new(top: Node, draft: Draft) -> Self {
        let below = Below::new(draft.leaves, draft.chunks);
        Self { top, nodes: draft.nodes.into(), below }
    }

    /// The leaf of the address, and the chunk below it.
    #[inline]
    fn look_up(&self, key: &mut impl Key) -> (u32, Option<&Self>) {
        let slot = key.take::<NODE_BITS>();
        match self.top.child(slot) {
            None => (self.below.leaves[self.top.leaf(slot)], None),
            Some(child) => self.look_up_from(&self.nodes[child], key),
        }
    }

    /// As [`Chunk::look_up`], but from a node below the top.
    #[inline]
    fn look_up_from<'a>(
        &'a self,
        mut node: &'a Node,
        key: &mut impl Key,
    ) -> (u32, Option<&'a Self>) {
        while node.leaves != LINK {
            let slot = key.take::<NODE_BITS>();
            let Some(child) = node.child(slot) else {
                return (self.below.leaves[node.leaf(slot)], None);
            };
            node = &self.nodes[child];
        }
        (node.changes as u32, Some(&self.below.chunks[node.children as usize]))
    }
}

impl Draft {
    /// Copies a node of an earlier block, with its leaves and chunks.
    pub(super) fn copy(&mut self, block: &Block, top: usize) -> Node {
        let (node, Below { leaves, chunks }) = (block.nodes[top], &block.below);
        let first = (self.leaves.len() as u32, self.chunks.len() as u32);
        let leaf_count = node.changes.count_ones() as usize + 1;
        self.leaves.extend(&leaves[node.leaves as usize..][..leaf_count]);
        let chunk_count = node.inner.count_ones() as usize;
        self.chunks.extend(chunks[node.children as usize..][..chunk_count].iter().cloned());
        Node { leaves: first.0, children: first.1, ..node }
    }
}

impl Below {
    fn new(leaves: Vec<u32>, chunks: Vec<Arc<Chunk>>) -> Self {
        Self { leaves: leaves.into(), chunks: chunks.into() }
    }
}

impl Node {
    /// A node with these leaves, which are appended to `leaves`. `children` is the index of the
    /// first child of the slots in `inner`.
    pub(super) fn new(
        slots: &[u32; NODE_SLOTS],
        inner: u64,
        children: usize,
        leaves: &mut Vec<u32>,
    ) -> Self {
        let first = leaves.len() as u32;
        leaves.push(slots[0]);
        let pairs = slots.windows(2).enumerate();
        let changes =
            pairs.fold(0, |all, (nth, pair)| all | u64::from(pair[0] != pair[1]) << nth) << 1;
        let mut left: u64 = changes;
        while left != 0 {
            leaves.push(slots[left.trailing_zeros() as usize]);
            left &= left - 1;
        }
        Self { inner, changes, leaves: first, children: children as u32 }
    }

    /// A link to a chunk. `leaf` is the leaf of the longest prefix above the chunk.
    pub(super) const fn link(chunk: usize, leaf: u32) -> Self {
        Self { inner: 0, changes: leaf as u64, leaves: LINK, children: chunk as u32 }
    }

    #[inline]
    const fn leaf(&self, slot: usize) -> usize {
        self.leaves as usize + (self.changes & (u64::MAX >> (63 - slot))).count_ones() as usize
    }

    #[inline]
    const fn child(&self, slot: usize) -> Option<usize> {
        let bit = 1 << slot;
        if self.inner & bit == 0 {
            return None;
        }
        Some(self.children as usize + (self.inner & (bit - 1)).count_ones() as usize)
    }
}

impl ChunkRoute {
    /// The route to the first `len` bits, at most [`CHUNK_BITS`], of the slot.
    pub(super) const fn new(slot: usize, len: u8, leaf: u32) -> Self {
        let slot = slot >> (CHUNK_BITS - len) << (CHUNK_BITS - len);
        Self { prefix: (slot << 4) as u16 | len as u16, leaf }
    }

    /// A bit mask of the first 6 bits: the slots of the top node that this route covers.
    pub(super) const fn tops(&self) -> u64 {
        let count = if self.len() < NODE_BITS { NODE_SLOTS >> self.len() } else { 1 };
        u64::MAX >> (NODE_SLOTS - count) << (self.first() >> NODE_BITS)
    }

    pub(super) const fn prefix(&self) -> u16 {
        self.prefix
    }

    pub(super) const fn len(&self) -> u8 {
        (self.prefix & 0xf) as u8
    }

    pub(super) const fn first(&self) -> usize {
        (self.prefix >> 4) as usize
    }
}

#[cfg(test)]
impl Trie {
    pub(super) fn shares_root(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.root, &other.root)
    }
}
