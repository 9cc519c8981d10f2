//! Structures of a library, many in a row, that go to it by one pointer.
//!
//! Two mistakes are easy where a library reads or writes an array of ours. A pointer is taken, the
//! array is used by its name, and the pointer is used again: the language lets each use of the name
//! end what the pointer may do. And what the library was to write is read although it has not: that
//! is memory without a value. So a batch is zero from the beginning, and whatever is read from it
//! is at worst old; and it gives its pointer last, from the whole array, by a method that borrows
//! it.
//!
//! Why it lies in a box and stays: to zero kilobytes on the stack costs more than a post does.

use ibverbs_sys as ffi;
use std::ptr;

/// Up to `N` structures. All of them have a value at any time.
pub(crate) struct Batch<T, const N: usize> {
    places: Box<[T]>,
    /// So many of them are filled.
    count: usize,
}

// SAFETY: a batch owns its structures. The pointers in them are of the request or the answer that
// they were last used for, and are never followed here.
unsafe impl<T, const N: usize> Send for Batch<T, N> {}

impl<T: Copy + Default, const N: usize> Batch<T, N> {
    /// One in which nothing is filled.
    pub(crate) fn new() -> Self {
        Self { places: vec![T::default(); N].into(), count: 0 }
    }

    /// Forgets what was filled.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    /// How many are filled.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Fills the next place, unless `fill` fails. The place holds whatever it held before.
    ///
    /// # Panics
    /// If all are filled.
    #[inline]
    pub(crate) fn fill<E>(&mut self, fill: impl FnOnce(&mut T) -> Result<(), E>) -> Result<(), E> {
        fill(&mut self.places[self.count])?;
        self.count += 1;
        Ok(())
    }

    /// What was filled.
    #[inline]
    pub(crate) fn filled_mut(&mut self) -> &mut [T] {
        &mut self.places[..self.count]
    }

    /// Where all `N` places are, for the library. Good until the batch is used again.
    #[inline]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut T {
        self.places.as_mut_ptr()
    }

    /// The first of the places, into which the library has written as many.
    #[inline]
    pub(crate) fn first(&self, count: usize) -> &[T] {
        &self.places[..count.min(N)]
    }
}

/// A structure that stands in a list.
pub(crate) trait Linked {
    /// Says which comes next.
    fn set_next(&mut self, next: *mut Self);
}

impl Linked for ffi::ibv_send_wr {
    #[inline]
    fn set_next(&mut self, next: *mut Self) {
        self.next = next;
    }
}

impl Linked for ffi::ibv_recv_wr {
    #[inline]
    fn set_next(&mut self, next: *mut Self) {
        self.next = next;
    }
}

impl<T: Copy + Default + Linked, const N: usize> Batch<T, N> {
    /// Makes a list of what was filled, for the library; gives the first, if there is one. Good
    /// until the batch is used again.
    #[inline]
    pub(crate) fn list(&mut self) -> *mut T {
        let (first, count) = (self.as_mut_ptr(), self.count);
        for at in 0..count {
            let is_last = at + 1 == count;
            let next = if is_last { ptr::null_mut() } else { first.wrapping_add(at + 1) };
            // SAFETY: `at` is below the count, which is at most the number of places. They are
            // reached by this one pointer to all of them from here on, until the library is done.
            unsafe { (*first.add(at)).set_next(next) };
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_to_be_filled_is_not_counted() {
        let mut batch = Batch::<u32, 3>::new();
        assert_eq!(batch.first(9), [0; 3]);
        assert_eq!(
            batch.fill(|place| {
                *place = 7;
                Ok::<_, ()>(())
            }),
            Ok(())
        );
        assert_eq!(batch.fill(|place| Err(std::mem::replace(place, 8))), Err(0));
        assert_eq!((batch.len(), batch.filled_mut()), (1, &mut [7][..]));
        batch.clear();
        assert_eq!((batch.len(), batch.first(2)), (0, &[7, 8][..]));
    }

    #[test]
    fn a_list_holds_what_was_filled_and_ends() {
        let mut batch = Batch::<ffi::ibv_recv_wr, 4>::new();
        for count in [3, 2] {
            batch.clear();
            for id in 0..count {
                let fill = |place: &mut ffi::ibv_recv_wr| {
                    place.wr_id = id;
                    Ok::<_, ()>(())
                };
                assert_eq!(batch.fill(fill), Ok(()));
            }
            let mut at = batch.list();
            for id in 0..count {
                // SAFETY: the list is of live places, and the batch is not used meanwhile.
                let place = unsafe { &*at };
                assert_eq!(place.wr_id, id);
                at = place.next;
            }
            assert!(at.is_null());
        }
    }
}
