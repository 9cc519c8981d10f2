//! The routes from which a [`Trie`] is built. A new version rebuilds only the changed parts.
//!
//! A branch has the routes that end in its 12 bits, in order, and the branches below. A change
//! marks the branches from the root to its own. The next version rebuilds the blocks and chunks of
//! marked branches, but only the changed pages of the root and the changed nodes of a block. It
//! shares everything else with the version before.

use super::trie::{
    Block, CHUNK_BITS, Chunk, ChunkRoute, Draft, Key, NO_LEAF, NODE_BITS, NODE_SLOTS, Node,
    RootSlot, Trie,
};
use std::sync::Arc;

/// The maximum number of routes of a chunk that has more than 12 bits. There is a limit because a
/// chunk is rebuilt when any of its routes changes.
const CHUNK_ROUTES_MAX: usize = 128;

#[derive(Default)]
pub(super) struct Rib {
    root: Branch,
    trie: Option<Trie>,
    is_changed: bool,
}

#[derive(Default)]
struct Branch {
    /// The routes that end in the 12 bits of this branch.
    routes: Vec<ChunkRoute>,
    /// The branches of longer routes, by slot.
    below: Vec<(u16, Box<Self>)>,
    count: usize,
    /// The published form: a block below the root, a chunk further down.
    block: Option<Arc<Block>>,
    chunk: Option<Arc<Chunk>>,
    /// A bit for each of the 64 values of the first 6 bits: set if routes there have changed since.
    changed: u64,
}

impl Rib {
    /// Sets the leaf of a prefix, or removes the prefix. Returns the previous leaf. The first bit
    /// of `prefix` is the highest.
    pub(super) fn set(&mut self, prefix: u128, len: u8, leaf: Option<u32>) -> Option<u32> {
        let before = self.root.set(prefix, len, leaf);
        self.is_changed |= before != leaf;
        before
    }

    pub(super) fn trie(&mut self) -> Trie {
        if std::mem::take(&mut self.is_changed) {
            self.trie = Some(self.root.trie(self.trie.as_ref()));
        }
        let Self { root, trie, .. } = self;
        trie.get_or_insert_with(|| root.trie(None)).clone()
    }
}

impl Branch {
    fn set(&mut self, mut prefix: u128, len: u8, leaf: Option<u32>) -> Option<u32> {
        let slot = prefix.take::<CHUNK_BITS>();
        let before = match len.checked_sub(CHUNK_BITS + 1) {
            None => self.set_here(slot, len, leaf),
            Some(_) => self.set_below(slot as u16, prefix, len - CHUNK_BITS, leaf),
        };
        self.count += usize::from(leaf.is_some());
        self.count -= usize::from(before.is_some());
        if before != leaf {
            self.chunk = None;
            // The default route is stored beside the root, so it changes no page.
            let here = ChunkRoute::new(slot, len.min(CHUNK_BITS), NO_LEAF);
            self.changed |= if len == 0 { 0 } else { here.tops() };
        }
        before
    }

    fn set_here(&mut self, slot: usize, len: u8, leaf: Option<u32>) -> Option<u32> {
        let route = ChunkRoute::new(slot, len, leaf.unwrap_or_default());
        let known = self.routes.binary_search_by_key(&route.prefix(), ChunkRoute::prefix);
        match (known, leaf) {
            (Ok(at), Some(leaf)) => Some(std::mem::replace(&mut self.routes[at].leaf, leaf)),
            (Ok(at), None) => Some(self.routes.remove(at).leaf),
            (Err(at), Some(_)) => {
                self.routes.insert(at, route);
                None
            }
            (Err(_), None) => None,
        }
    }

    fn set_below(&mut self, slot: u16, rest: u128, len: u8, leaf: Option<u32>) -> Option<u32> {
        let at = match self.below.binary_search_by_key(&slot, |(slot, _)| *slot) {
            Ok(at) => at,
            Err(_) if leaf.is_none() => return None,
            Err(at) => {
                self.below.insert(at, (slot, Box::default()));
                at
            }
        };
        let branch = &mut self.below[at].1;
        let before = branch.set(rest, len, leaf);
        if branch.routes.is_empty() && branch.below.is_empty() {
            self.below.remove(at);
        }
        before
    }

    /// The trie below the root, which shares the unchanged pages of `before`.
    fn trie(&mut self, before: Option<&Trie>) -> Trie {
        let changed = std::mem::take(&mut self.changed);
        let default = self.routes.first().filter(|route| route.len() == 0);
        let default = default.map_or(NO_LEAF, |route| route.leaf);
        let (top_leaves, parts) = self.parts(NO_LEAF);
        let mut parts = parts.peekable();
        let page = |top| {
            let part = parts.next_if(|part| part.top == top).unwrap_or_default();
            if let Some(before) = before.filter(|_| changed >> top & 1 == 0) {
                return before.page(top);
            }
            let mut slots = part.leaves(top_leaves[top]).map(|leaf| RootSlot { leaf, block: None });
            for (slot, branch) in part.below {
                slots[usize::from(*slot) % NODE_SLOTS].block = Some(branch.block());
            }
            slots.into()
        };
        Trie::new(default, std::array::from_fn(page))
    }

    fn block(&mut self) -> Arc<Block> {
        let changed = std::mem::take(&mut self.changed);
        if let (Some(block), 0) = (&self.block, changed) {
            return Arc::clone(block);
        }
        let before = self.block.take();
        let mut draft = Draft::default();
        let mut nodes = [Node::default(); NODE_SLOTS];
        let (top_leaves, parts) = self.parts(NO_LEAF);
        let mut parts = parts.peekable();
        for (top, node) in nodes.iter_mut().enumerate() {
            let part = parts.next_if(|part| part.top == top).unwrap_or_default();
            if let Some(before) = before.as_ref().filter(|_| changed >> top & 1 == 0) {
                *node = draft.copy(before, top);
                continue;
            }
            let (slots, first) = (part.leaves(top_leaves[top]), draft.chunks.len());
            draft.chunks.extend(part.below.iter_mut().map(|(_, branch)| branch.chunk()));
            *node = Node::new(&slots, part.inner(), first, &mut draft.leaves);
        }
        drop(parts);
        self.block.insert(Block::new(&nodes, draft).into()).clone()
    }

    fn chunk(&mut self) -> Arc<Chunk> {
        if let Some(chunk) = &self.chunk {
            return Arc::clone(chunk);
        }
        let mut draft = Draft::default();
        let has_links = self.count > CHUNK_ROUTES_MAX;
        let top = self.top_node(NO_LEAF, has_links, &mut draft);
        self.chunk.insert(Chunk::new(top, draft).into()).clone()
    }

    /// Adds this branch and everything below it to a chunk. Returns the top node of the branch.
    /// `leaf` is the leaf of its prefix.
    fn top_node(&mut self, leaf: u32, has_links: bool, draft: &mut Draft) -> Node {
        let (mut top_leaves, parts) = self.parts(leaf);
        let (mut inner, mut nodes) = (0, Vec::new());
        for part in parts {
            let top = part.top;
            let slots = part.leaves(top_leaves[top]);
            if part.below.is_empty() && slots.iter().all(|leaf| *leaf == slots[0]) {
                top_leaves[top] = slots[0];
                continue;
            }
            inner |= 1 << top;
            // No look-up reads the leaf of a slot with a child. If it equals the leaf of the slot
            // before, no entry is stored for it.
            top_leaves[top] = top_leaves[top.saturating_sub(1)];
            let part_inner = part.inner();
            let children = part.below.iter_mut().map(|(slot, branch)| {
                let leaf = slots[usize::from(*slot) % NODE_SLOTS];
                if has_links {
                    draft.chunks.push(branch.chunk());
                    return Node::link(draft.chunks.len() - 1, leaf);
                }
                branch.chunk = None;
                branch.top_node(leaf, false, draft)
            });
            let children: Vec<Node> = children.collect();
            let first = draft.nodes.len();
            draft.nodes.extend(children);
            nodes.push(Node::new(&slots, part_inner, first, &mut draft.leaves));
        }
        let first = draft.nodes.len();
        draft.nodes.append(&mut nodes);
        Node::new(&top_leaves, inner, first, &mut draft.leaves)
    }

    /// The leaves of the 64 slots by the first 6 bits, and the parts with longer routes.
    fn parts(&mut self, leaf: u32) -> ([u32; NODE_SLOTS], impl Iterator<Item = Part<'_>>) {
        let mut leaves = [leaf; NODE_SLOTS];
        let is_short = |route: &&ChunkRoute| (1..=NODE_BITS).contains(&route.len());
        for route in self.routes.iter().filter(is_short) {
            let first = route.first() >> NODE_BITS;
            leaves[first..][..NODE_SLOTS >> route.len()].fill(route.leaf);
        }
        let (mut routes, mut below) = (&self.routes[..], &mut self.below[..]);
        let parts = std::iter::from_fn(move || {
            let top_of_route = |route: &ChunkRoute| route.first() >> NODE_BITS;
            let top_of = |(slot, _): &(u16, _)| usize::from(*slot >> NODE_BITS);
            let tops = [routes.first().map(top_of_route), below.first().map(top_of)];
            let top = tops.into_iter().flatten().min()?;
            let count = routes.iter().take_while(|route| top_of_route(route) == top).count();
            let branches = below.iter().take_while(|branch| top_of(branch) == top).count();
            let routes = routes.split_off(..count).unwrap_or_default();
            let below = below.split_off_mut(..branches).unwrap_or_default();
            Some(Part { top, routes, below })
        });
        (leaves, parts)
    }
}

/// The part of a branch below one of the 64 slots by its first 6 bits.
#[derive(Default)]
struct Part<'a> {
    top: usize,
    routes: &'a [ChunkRoute],
    below: &'a mut [(u16, Box<Branch>)],
}

impl Part<'_> {
    /// The leaves of the 64 slots by the next 6 bits. `leaf` is the leaf of the first 6 bits.
    fn leaves(&self, leaf: u32) -> [u32; NODE_SLOTS] {
        let mut leaves = [leaf; NODE_SLOTS];
        for route in self.routes.iter().filter(|route| route.len() > NODE_BITS) {
            let first = route.first() % NODE_SLOTS;
            leaves[first..][..NODE_SLOTS >> (route.len() - NODE_BITS)].fill(route.leaf);
        }
        leaves
    }

    fn inner(&self) -> u64 {
        let slots = self.below.iter().map(|(slot, _)| usize::from(*slot) % NODE_SLOTS);
        slots.fold(0, |inner, slot| inner | 1 << slot)
    }
}
