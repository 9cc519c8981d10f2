//! Things kept under numbers, where an old number never finds a new thing.

use std::collections::VecDeque;

/// Things under numbers of 32 bits: 24 of place, 8 of generation, which counts how often the place
/// was used before. So a handle outlives its thing by 255 others at the same place.
#[derive(Debug)]
pub(crate) struct Table<T> {
    places: Vec<Place<T>>,
    /// Oldest first, so that a number comes back as late as can be.
    free: VecDeque<u32>,
    places_max: u32,
}

#[derive(Debug)]
struct Place<T> {
    generation: u8,
    thing: Option<T>,
}

const PLACE_BITS: u32 = 24;

impl<T> Table<T> {
    /// An empty one with room for `places_max` things, at most 2^24 - 1.
    pub(crate) fn new(places_max: u32) -> Self {
        Self {
            places: Vec::new(),
            free: VecDeque::new(),
            places_max: places_max.min((1 << PLACE_BITS) - 1),
        }
    }

    /// Keeps a thing; its number, or the thing back if there is no room.
    pub(crate) fn insert(&mut self, thing: T) -> Result<u32, T> {
        let place = match self.free.pop_front() {
            Some(place) => place,
            None if self.places.len() < self.places_max as usize => {
                // Numbers start at 1, so that 0 is nobody's.
                self.places.push(Place { generation: 0, thing: None });
                self.places.len() as u32 - 1
            }
            None => return Err(thing),
        };
        let kept = &mut self.places[place as usize];
        kept.thing = Some(thing);
        Ok(number(place, kept.generation))
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let kept = self.places.get(place_of(number))?;
        if kept.generation == generation_of(number) { kept.thing.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let kept = self.places.get_mut(place_of(number))?;
        if kept.generation == generation_of(number) { kept.thing.as_mut() } else { None }
    }

    /// Gives a thing up.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let place = place_of(number);
        let kept = self.places.get_mut(place)?;
        if kept.generation != generation_of(number) {
            return None;
        }
        let thing = kept.thing.take()?;
        kept.generation = kept.generation.wrapping_add(1);
        self.free.push_back(place as u32);
        Some(thing)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.places.iter().enumerate().filter_map(|(place, kept)| {
            Some((number(place as u32, kept.generation), kept.thing.as_ref()?))
        })
    }
}

const fn number(place: u32, generation: u8) -> u32 {
    (generation as u32) << PLACE_BITS | (place + 1)
}

const fn place_of(number: u32) -> usize {
    (number & ((1 << PLACE_BITS) - 1)).wrapping_sub(1) as usize
}

const fn generation_of(number: u32) -> u8 {
    (number >> PLACE_BITS) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_number_finds_nothing() {
        let mut table = Table::new(2);
        let first = table.insert("first").unwrap();
        assert_eq!(table.get(first), Some(&"first"));
        assert_eq!(table.get(0), None);
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second").unwrap();
        assert_ne!(first, second);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(first), None);
        assert_eq!(table.get(second), Some(&"second"));
        table.insert("third").unwrap();
        assert_eq!(table.insert("fourth"), Err("fourth"));
    }
}
