//! What an adapter owns, under handles, where an old handle never finds a new thing: for whoever
//! implements [`Device`](crate::Device).

use std::collections::VecDeque;

/// Things under numbers of 32 bits: 24 of place, 8 of generation, which counts how often the place
/// was used before. So a handle outlives its thing by 255 others at the same place, or by fewer
/// where generations have fewer bits.
#[derive(Debug)]
pub struct Table<T> {
    places: Vec<Place<T>>,
    /// Oldest first, so that a number comes back as late as can be.
    free: VecDeque<u32>,
    places_max: u32,
    generation_max: u8,
}

#[derive(Debug)]
struct Place<T> {
    generation: u8,
    thing: Option<T>,
}

const PLACE_BITS: u32 = 24;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;

impl<T> Table<T> {
    /// An empty one with room for `places_max` things, at most 2^24 - 1.
    pub fn new(places_max: u32) -> Self {
        Self::with_generations(places_max, 8)
    }

    /// The same with generations of so many bits, 1 to 8, for whoever makes names of its numbers
    /// that have no room for more.
    pub fn with_generations(places_max: u32, bits: u32) -> Self {
        let (places, free) = (Vec::new(), VecDeque::new());
        let generation_max = u8::MAX >> (8 - bits.clamp(1, 8));
        Self { places, free, places_max: places_max.min(PLACE_MASK), generation_max }
    }

    /// The number that the next thing gets, for a thing that has to know; `None` if there is no
    /// room.
    pub fn next_number(&self) -> Option<u32> {
        let place = match self.free.front() {
            Some(place) => *place,
            None if self.places.len() < self.places_max as usize => self.places.len() as u32,
            None => return None,
        };
        Some(number(place, self.places.get(place as usize).map_or(0, |kept| kept.generation)))
    }

    /// Keeps a thing; its number, or the thing back if there is no room.
    pub fn insert(&mut self, thing: T) -> Result<u32, T> {
        let Some(number) = self.next_number() else { return Err(thing) };
        let place = place_of(number);
        if place == self.places.len() {
            self.places.push(Place { generation: 0, thing: None });
        } else {
            self.free.pop_front();
        }
        self.places[place].thing = Some(thing);
        Ok(number)
    }

    /// The thing under this number.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        let kept = self.places.get(place_of(number))?;
        if kept.generation == generation_of(number) { kept.thing.as_ref() } else { None }
    }

    /// The same, to change it.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let kept = self.places.get_mut(place_of(number))?;
        if kept.generation == generation_of(number) { kept.thing.as_mut() } else { None }
    }

    /// Gives a thing up.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let place = place_of(number);
        let kept = self.places.get_mut(place)?;
        if kept.generation != generation_of(number) {
            return None;
        }
        let thing = kept.thing.take()?;
        kept.generation = kept.generation.wrapping_add(1) & self.generation_max;
        self.free.push_back(place as u32);
        Some(thing)
    }

    /// All things, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.places.iter().enumerate().filter_map(|(place, kept)| {
            Some((number(place as u32, kept.generation), kept.thing.as_ref()?))
        })
    }
}

/// Numbers start at 1, so that 0 is nobody's.
const fn number(place: u32, generation: u8) -> u32 {
    (generation as u32) << PLACE_BITS | (place + 1)
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

    #[test]
    fn a_number_comes_back_after_all_generations() {
        for (mut table, others) in [(Table::new(1), 255), (Table::with_generations(1, 5), 31)] {
            let mut again = || {
                let number = table.insert(()).unwrap();
                table.remove(number).map(|()| number)
            };
            let first = again();
            assert!((0..others).all(|_| again() != first));
            assert_eq!(again(), first);
        }
    }

    #[test]
    fn a_number_is_known_before_its_thing_is_there() {
        let mut table = Table::new(2);
        for _ in 0..600 {
            let number = table.next_number().unwrap();
            assert_eq!(table.get(number), None);
            assert_eq!(table.insert(()), Ok(number));
            assert_eq!(table.remove(number), Some(()));
        }
        assert_eq!((table.insert(()).is_ok(), table.insert(()).is_ok()), (true, true));
        assert_eq!(table.next_number(), None);
    }
}
