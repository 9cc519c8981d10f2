//! Sockets by number: a lookup is an index, and a number that was given back is never taken for
//! whoever has its place now.

use std::marker::PhantomData;

/// Names something in a [`Slab`].
pub struct Key<T> {
    index: u32,
    generation: u32,
    of: PhantomData<fn() -> T>,
}

/// So many things at most, each under a key of its own.
pub(super) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    places_max: usize,
}

struct Place<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(super) const fn new(places_max: usize) -> Self {
        Self { places: Vec::new(), free: Vec::new(), places_max }
    }

    /// Whether another one has no place.
    pub(super) const fn is_full(&self) -> bool {
        self.free.is_empty() && self.places.len() >= self.places_max
    }

    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Gives a value a place, if there is one.
    pub(super) fn insert(&mut self, value: T) -> Option<Key<T>> {
        if self.is_full() {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, value: None });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        Some(Key { index, generation: place.generation, of: PhantomData })
    }

    /// All that have a place.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.value.as_ref())
    }

    pub(super) fn get(&self, key: Key<T>) -> Option<&T> {
        let place = self.places.get(key.index as usize)?;
        place.value.as_ref().filter(|_| place.generation == key.generation)
    }

    pub(super) fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        place.value.as_mut().filter(|_| place.generation == key.generation)
    }

    pub(super) fn remove(&mut self, key: Key<T>) -> Option<T> {
        let place = self.places.get_mut(key.index as usize)?;
        let value = place.value.take_if(|_| place.generation == key.generation)?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }
}

/// What somebody else keeps beside the things of a [`Slab`], found under their keys.
pub(crate) struct Beside<V> {
    places: Vec<Option<(u32, V)>>,
    len: usize,
}

impl<V> Beside<V> {
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), len: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Keeps a value under a key, which has none.
    pub(crate) fn insert<T>(&mut self, key: Key<T>, value: V) {
        let index = key.index as usize;
        if index >= self.places.len() {
            self.places.resize_with(index + 1, || None);
        }
        self.places[index] = Some((key.generation, value));
        self.len += 1;
    }

    pub(crate) fn get_mut<T>(&mut self, key: Key<T>) -> Option<&mut V> {
        let place = self.places.get_mut(key.index as usize)?.as_mut();
        place.filter(|(generation, _)| *generation == key.generation).map(|(_, value)| value)
    }

    pub(crate) fn remove<T>(&mut self, key: Key<T>) -> Option<V> {
        let place = self.places.get_mut(key.index as usize)?;
        let (_, value) = place.take_if(|(generation, _)| *generation == key.generation)?;
        self.len -= 1;
        Some(value)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.places.iter().flatten().map(|(_, value)| value)
    }
}

impl<T> Key<T> {
    const fn order(&self) -> (u32, u32) {
        (self.index, self.generation)
    }
}

// By hand, because a key is as plain as its numbers whatever it is a key of.
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
    fn a_key_that_was_given_back_names_nothing() {
        let mut slab = Slab::new(2);
        let first = slab.insert("first").expect("a place");
        let second = slab.insert("second").expect("a place");
        assert!(slab.insert("third").is_none() && slab.is_full());
        assert_eq!(slab.remove(first), Some("first"));
        let third = slab.insert("third").expect("a place");
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(first), None);
        assert_eq!((slab.get(second), slab.get(third)), (Some(&"second"), Some(&"third")));
        assert_eq!(slab.len(), 2);
    }

    #[test]
    fn what_is_beside_a_key_is_not_beside_its_successor() {
        let (mut slab, mut beside) = (Slab::new(1), Beside::new());
        let first = slab.insert("first").expect("a place");
        beside.insert(first, 1);
        assert_eq!(beside.get_mut(first), Some(&mut 1));
        slab.remove(first);
        let second = slab.insert("second").expect("a place");
        assert_eq!(beside.get_mut(second), None);
        assert_eq!(beside.remove(second), None);
        assert_eq!((beside.remove(first), beside.remove(first), beside.len()), (Some(1), None, 0));
    }
}
