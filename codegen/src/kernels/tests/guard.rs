//! Memory between pages that nobody may touch: an access beyond it ends the process at once, on the
//! spot, whatever the instruction.
//!
//! A buffer's length is seldom a multiple of a page, so only one of its ends lies against such a page;
//! which one, the caller says, and runs a case with both. On the other side is a rest of a page, whose
//! bytes are known and are looked at when the buffer is given back.
//!
//! System calls by their C names, which the standard library links already: no crate gives a page
//! without any access.
#![allow(unsafe_code)]

use std::ffi::c_void;

const PAGE: usize = 4096;
/// What the rest of a page holds.
const REST: u8 = 0xa5;

const READ_WRITE: i32 = 3;
const NONE: i32 = 0;
const PRIVATE_ANONYMOUS: i32 = 0x22;

unsafe extern "C" {
    fn mmap(
        at: *mut c_void,
        bytes: usize,
        access: i32,
        kind: i32,
        file: i32,
        from: i64,
    ) -> *mut c_void;
    fn mprotect(at: *mut c_void, bytes: usize, access: i32) -> i32;
    fn munmap(at: *mut c_void, bytes: usize) -> i32;
}

/// Which end of a buffer lies against a page without access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernels) enum Side {
    /// Its first byte follows such a page.
    Begin,
    /// Such a page follows its last byte.
    End,
}

/// A buffer between two pages without access.
pub(in crate::kernels) struct Guarded {
    mapping: *mut u8,
    /// Pages with access.
    room: usize,
    start: usize,
    length: usize,
}

impl Guarded {
    /// Room for some bytes, with these in it.
    pub(in crate::kernels) fn new(bytes: &[u8], side: Side) -> Guarded {
        let room = bytes.len().next_multiple_of(PAGE).max(PAGE);
        let whole = room + 2 * PAGE;
        // SAFETY: a new mapping at a place of the system's choice; nothing else refers to it.
        let mapping = unsafe {
            mmap(std::ptr::null_mut(), whole, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0).cast::<u8>()
        };
        assert_ne!(mapping.addr(), usize::MAX, "no memory");
        for page in [0, PAGE + room] {
            // SAFETY: the first and the last page of the mapping made above.
            let failed = unsafe { mprotect(mapping.add(page).cast(), PAGE, NONE) };
            assert_eq!(failed, 0, "pages keep their access");
        }
        let start = match side {
            Side::Begin => PAGE,
            Side::End => PAGE + room - bytes.len(),
        };
        let mut guarded = Guarded { mapping, room, start, length: bytes.len() };
        guarded.pages().fill(REST);
        guarded.bytes().copy_from_slice(bytes);
        guarded
    }

    /// All pages with access.
    fn pages(&mut self) -> &mut [u8] {
        // SAFETY: mapped read-write for as long as `self`, which is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.add(PAGE), self.room) }
    }

    /// The buffer.
    pub(in crate::kernels) fn bytes(&mut self) -> &mut [u8] {
        let (start, length) = (self.start - PAGE, self.length);
        &mut self.pages()[start..start + length]
    }

    /// What the buffer holds now.
    ///
    /// # Panics
    ///
    /// If the rest of its pages has changed.
    pub(in crate::kernels) fn finish(mut self) -> Vec<u8> {
        let (start, length) = (self.start - PAGE, self.length);
        let pages = self.pages();
        let rest = pages[..start].iter().chain(&pages[start + length..]);
        assert!(rest.into_iter().all(|byte| *byte == REST), "written beside a buffer");
        self.bytes().to_vec()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`, which nobody else has.
        unsafe { munmap(self.mapping.cast(), self.room + 2 * PAGE) };
    }
}

/// The guard itself: the byte beside a buffer is not there. A process of its own tries it, for it
/// does not come back.
#[test]
fn a_byte_beside_a_buffer_ends_the_process() {
    const TRY: &str = "WEIR_TRY_BESIDE";
    if let Ok(side) = std::env::var(TRY) {
        let (side, beside) = if side == "begin" { (Side::Begin, -1) } else { (Side::End, 5000) };
        let mut guarded = Guarded::new(&[1; 5000], side);
        let at = guarded.bytes().as_ptr().wrapping_offset(beside);
        // SAFETY: none: that this read ends the process is what is tested.
        println!("read {}", unsafe { std::ptr::read_volatile(at) });
        return;
    }
    for side in ["begin", "end"] {
        let program = std::env::current_exe().unwrap();
        let name = "a_byte_beside_a_buffer_ends_the_process";
        let output = std::process::Command::new(program)
            .args([name, "--nocapture"])
            .env(TRY, side)
            .output()
            .unwrap();
        assert!(!output.status.success(), "{side}: the read came back");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("read "), "{side}");
    }
}
