//! What a device owns, under handles, where an old handle never finds a new thing.

use std::collections::VecDeque;

/// Things under numbers of 32 bits: 24 of place, 8 of generation. So a handle outlives its thing by
/// 255 others at the same place.
pub(super) struct Table<T> {
    places: Vec<Place<T>>,
    /// Oldest first, so that a number comes back as late as can be.
    free: VecDeque<u32>,
    places_max: u32,
}

struct Place<T> {
    generation: u8,
    thing: Option<T>,
}

const PLACE_BITS: u32 = 24;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;

impl<T> Table<T> {
    /// An empty one for `places_max` things, at most 2^24 - 1.
    pub(super) fn new(places_max: u32) -> Self {
        Self { places: Vec::new(), free: VecDeque::new(), places_max: places_max.min(PLACE_MASK) }
    }

    /// The number that the next thing gets; `None` if there is no room.
    pub(super) fn next_number(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            if self.places.len() >= self.places_max as usize {
                return None;
            }
            self.places.push(Place { generation: 0, thing: None });
            self.free.push_back(self.places.len() as u32 - 1);
        }
        let place = *self.free.front()?;
        let generation = self.places[place as usize].generation;
        // Numbers start at 1, so that 0 is nobody's.
        Some(u32::from(generation) << PLACE_BITS | (place + 1))
    }

    /// Keeps a thing under `number`, which `next_number` has just given.
    pub(super) fn keep(&mut self, number: u32, thing: T) {
        let place = self.free.pop_front().expect("a number was given, so there is a place");
        debug_assert_eq!(place, (number & PLACE_MASK) - 1, "the number given last");
        self.places[place as usize].thing = Some(thing);
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        let place = self.places.get(place_of(number))?;
        if place.generation == generation_of(number) { place.thing.as_ref() } else { None }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let place = self.places.get_mut(place_of(number))?;
        if place.generation == generation_of(number) { place.thing.as_mut() } else { None }
    }

    /// Gives a thing up.
    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let place = self.places.get_mut(place_of(number))?;
        if place.generation != generation_of(number) {
            return None;
        }
        let thing = place.thing.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push_back(place_of(number) as u32);
        Some(thing)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.thing.as_ref())
    }
}

const fn place_of(number: u32) -> usize {
    (number & PLACE_MASK).wrapping_sub(1) as usize
}

const fn generation_of(number: u32) -> u8 {
    (number >> PLACE_BITS) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(table: &mut Table<&'static str>, thing: &'static str) -> Option<u32> {
        let number = table.next_number()?;
        table.keep(number, thing);
        Some(number)
    }

    #[test]
    fn an_old_number_finds_nothing() {
        let mut table = Table::new(2);
        let first = insert(&mut table, "first").unwrap();
        assert_eq!(table.get(first), Some(&"first"));
        assert_eq!(table.get(0), None);
        assert_eq!(table.remove(first), Some("first"));
        let second = insert(&mut table, "second").unwrap();
        assert_ne!(first, second);
        assert_eq!((table.remove(first), table.get(first)), (None, None));
        assert_eq!(table.get(second), Some(&"second"));
        insert(&mut table, "third").unwrap();
        assert_eq!(insert(&mut table, "fourth"), None);
        assert_eq!(table.iter().count(), 2);
    }
}
