//! Tables of sockets by key. A lookup is one index operation, and the key of a removed socket does
//! not find the next socket in the same slot.

use std::marker::PhantomData;

/// Identifies a value in a [`Slab`].
pub struct Key<T> {
    index: u32,
    generation: u32,
    of: PhantomData<fn() -> T>,
}

#[cfg(test)]
impl<T> Key<T> {
    pub(crate) const fn of_index(index: u32) -> Self {
        Self { index, generation: 0, of: PhantomData }
    }
}

/// A bounded set of values, each with its own key.
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    slots_max: usize,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(super) const fn new(slots_max: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), slots_max }
    }

    pub(super) const fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= self.slots_max
    }

    pub(super) const fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// `None` if the slab is full.
    pub(super) fn insert(&mut self, value: T) -> Option<Key<T>> {
        if self.is_full() {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        Some(Key { index, generation: slot.generation, of: PhantomData })
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// The keys of all values, in order.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key<T>> {
        let taken = (0..).zip(&self.slots).filter(|(_, slot)| slot.value.is_some());
        taken.map(|(index, slot)| Key { index, generation: slot.generation, of: PhantomData })
    }

    pub(super) fn get(&self, key: Key<T>) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        slot.value.as_ref().filter(|_| slot.generation == key.generation)
    }

    pub(super) fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        slot.value.as_mut().filter(|_| slot.generation == key.generation)
    }

    pub(super) fn remove(&mut self, key: Key<T>) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        let value = slot.value.take_if(|_| slot.generation == key.generation)?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }
}

/// A map with the keys of a [`Slab`], for values outside of it.
pub(crate) struct SlabMap<V> {
    slots: Vec<Option<(u32, V)>>,
    len: usize,
}

impl<V> SlabMap<V> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), len: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The key must not have a value yet.
    pub(crate) fn insert<T>(&mut self, key: Key<T>, value: V) {
        let index = key.index as usize;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some((key.generation, value));
        self.len += 1;
    }

    pub(crate) fn get_mut<T>(&mut self, key: Key<T>) -> Option<&mut V> {
        let slot = self.slots.get_mut(key.index as usize)?.as_mut();
        slot.filter(|(generation, _)| *generation == key.generation).map(|(_, value)| value)
    }

    pub(crate) fn remove<T>(&mut self, key: Key<T>) -> Option<V> {
        let slot = self.slots.get_mut(key.index as usize)?;
        let (_, value) = slot.take_if(|(generation, _)| *generation == key.generation)?;
        self.len -= 1;
        Some(value)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.slots.iter().flatten().map(|(_, value)| value)
    }
}

impl<T> Key<T> {
    const fn order(&self) -> (u32, u32) {
        (self.index, self.generation)
    }
}

// Not derived: a derive would require these traits of `T`.
impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl<T> Eq for Key<T> {}

impl<T> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Key<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl<T> std::fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_key_finds_nothing() {
        let mut slab = Slab::new(2);
        let first = slab.insert("first").expect("a slot");
        let second = slab.insert("second").expect("a slot");
        assert!(slab.insert("third").is_none() && slab.is_full());
        assert_eq!(slab.remove(first), Some("first"));
        let third = slab.insert("third").expect("a slot");
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(first), None);
        assert_eq!((slab.get(second), slab.get(third)), (Some(&"second"), Some(&"third")));
        assert_eq!(slab.len(), 2);
    }

    #[test]
    fn a_value_of_a_removed_key_is_not_found_under_the_next_key() {
        let (mut slab, mut map) = (Slab::new(1), SlabMap::new());
        let first = slab.insert("first").expect("a slot");
        map.insert(first, 1);
        assert_eq!(map.get_mut(first), Some(&mut 1));
        slab.remove(first);
        let second = slab.insert("second").expect("a slot");
        assert_eq!(map.get_mut(second), None);
        assert_eq!(map.remove(second), None);
        assert_eq!((map.remove(first), map.remove(first), map.len()), (Some(1), None, 0));
    }
}
