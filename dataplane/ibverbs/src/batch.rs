//! Arrays of a library's structures, passed to the library by one pointer.
//!
//! Two mistakes are easy when a library accesses an array of Rust. First, code takes a pointer to
//! the array, accesses the array by its name, and then uses the pointer again, although that access
//! has invalidated it. A batch prevents this: the methods that return the pointer borrow the batch,
//! and callers take the pointer last. Second, code reads an element that the library has not
//! written, which is uninitialized memory. So a batch is initialized when it is created, and such a
//! read returns an old value at worst.
//!
//! Why a batch is boxed and reused: zeroing kilobytes on the stack costs more than a post.

use ibverbs_sys as ffi;
use std::ptr;

/// Up to `N` structures. All `N` are initialized at any time.
pub(crate) struct Batch<T, const N: usize> {
    elements: Box<[T]>,
    count: usize,
}

// SAFETY: a batch owns its work requests. The pointers in them belong to the last post, and this
// type never dereferences them, so another thread may own the batch.
unsafe impl<const N: usize> Send for Batch<ffi::ibv_send_wr, N> {}

// SAFETY: as for send work requests.
unsafe impl<const N: usize> Send for Batch<ffi::ibv_recv_wr, N> {}

// SAFETY: these have no pointers.
unsafe impl<const N: usize> Send for Batch<ffi::ibv_sge, N> {}

// SAFETY: as for scatter/gather elements.
unsafe impl<const N: usize> Send for Batch<ffi::ibv_wc, N> {}

impl<T: Copy + Default, const N: usize> Batch<T, N> {
    pub(crate) fn new() -> Self {
        Self { elements: vec![T::default(); N].into(), count: 0 }
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Adds the next element with `fill`, which may leave fields at the values of an earlier use.
    /// If `fill` fails, no element is added.
    ///
    /// # Panics
    /// If the batch is full.
    #[inline]
    pub(crate) fn fill<E>(&mut self, fill: impl FnOnce(&mut T) -> Result<(), E>) -> Result<(), E> {
        fill(&mut self.elements[self.count])?;
        self.count += 1;
        Ok(())
    }

    #[inline]
    pub(crate) fn filled_mut(&mut self) -> &mut [T] {
        &mut self.elements[..self.count]
    }

    /// The pointer to all `N` elements, for the library. Valid until the next use of the batch.
    #[inline]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut T {
        self.elements.as_mut_ptr()
    }

    /// The first `count` elements, after the library has written them.
    #[inline]
    pub(crate) fn first(&self, count: usize) -> &[T] {
        &self.elements[..count.min(N)]
    }
}

/// A structure with a pointer to the next one.
pub(crate) trait Linked {
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
    /// Links the filled elements to a list for the library, and returns a pointer to the first
    /// element. The pointer is valid until the next use of the batch.
    #[inline]
    pub(crate) fn list(&mut self) -> *mut T {
        let (first, count) = (self.as_mut_ptr(), self.count);
        for at in 0..count {
            let is_last = at + 1 == count;
            let next = if is_last { ptr::null_mut() } else { first.wrapping_add(at + 1) };
            // SAFETY: `at` is below `count`, which is at most the number of elements. All accesses
            // to the elements, including the library's, are through this one pointer.
            unsafe { (*first.add(at)).set_next(next) };
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_that_fails_to_be_filled_is_not_counted() {
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
    fn a_list_has_the_filled_elements_and_ends() {
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
                // SAFETY: the elements of the list are live, and the batch is not used meanwhile.
                let place = unsafe { &*at };
                assert_eq!(place.wr_id, id);
                at = place.next;
            }
            assert!(at.is_null());
        }
    }
}
