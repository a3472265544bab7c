//! Zeroed memory at multiples of 64 bytes, which model code asks for.
//!
//! The allocator maps large zeroed blocks lazily, so pages that are never touched cost nothing.

use std::ops::{Deref, DerefMut};

/// A fixed number of values, the first at a multiple of 64 bytes.
pub struct Buffer<T> {
    storage: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> Buffer<T> {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> Buffer<T>
    where
        T: ZeroInit,
    {
        let spare = 64 / size_of::<T>();
        let storage = T::zeros(len + spare);
        let start = storage.as_ptr().align_offset(64).min(spare);
        Buffer { storage, start, len }
    }
}

/// Values whose zeroed vectors the allocator provides without writing them.
pub trait ZeroInit: Sized {
    /// A vector of zeros.
    fn zeros(len: usize) -> Vec<Self>;
}

impl ZeroInit for u8 {
    fn zeros(len: usize) -> Vec<u8> {
        vec![0; len]
    }
}

impl ZeroInit for f32 {
    fn zeros(len: usize) -> Vec<f32> {
        vec![0.0; len]
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.storage[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.storage[self.start..self.start + self.len]
    }
}
