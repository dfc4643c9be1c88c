//! The memory of worlds. A world has a thread of its own, which ends with it, and makes small blocks all the time: they are kept
//! by their sizes for the same thread, and for the worlds to come. What other threads ask for is the system's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::server::lock;

/// Sizes of blocks are multiples of it, up to `SMALL`; above, there are four sizes between two powers of two.
const STEP: usize = 16;
const SMALL: usize = 1024;
const LARGEST: usize = 1 << 16;
const SIZES: usize = SMALL / STEP + 4 * (LARGEST / SMALL).ilog2() as usize;
/// What a thread takes at once.
const CHUNK: usize = 1 << 20;
/// The addresses of all blocks. Those that are not used take no memory.
const RESERVED: usize = 1 << 38;

/// Blocks that are not used, by their sizes: each has the address of the next one. And what is left of a chunk.
struct Blocks {
    free: [*mut u8; SIZES],
    chunk: (usize, usize),
}

// SAFETY: who has it has its blocks.
unsafe impl Send for Blocks {}

thread_local! {
    static OWN: UnsafeCell<Blocks> = const { UnsafeCell::new(Blocks::NONE) };
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Those of worlds that have ended.
static SPARE: Mutex<Vec<Blocks>> = Mutex::new(Vec::new());
/// What other threads have freed.
static RETURNED: Mutex<Blocks> = Mutex::new(Blocks::NONE);
static BEGIN: OnceLock<usize> = OnceLock::new();
static USED: AtomicUsize = AtomicUsize::new(0);

impl Blocks {
    const NONE: Self = Self {
        free: [null_mut(); SIZES],
        chunk: (0, 0),
    };
}

/// Which size a layout has, if blocks of it are kept.
fn size_of(layout: Layout) -> Option<usize> {
    let (size, above) = (layout.size(), layout.size().wrapping_sub(1));
    match size {
        _ if layout.align() > STEP || size > LARGEST || size == 0 => None,
        ..=SMALL => Some(above / STEP),
        _ => {
            let doubled = above.ilog2() as usize;
            Some(
                SMALL / STEP
                    + 4 * (doubled - SMALL.ilog2() as usize)
                    + (above >> (doubled - 2) & 3),
            )
        }
    }
}

/// How many bytes a block of a size has.
fn bytes(size: usize) -> usize {
    match size.checked_sub(SMALL / STEP) {
        None => (size + 1) * STEP,
        Some(size) => (SMALL + (size % 4 + 1) * SMALL / 4) << (size / 4),
    }
}

/// The first of the reserved addresses; 0: there are none.
fn begin() -> usize {
    *BEGIN.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: this maps new addresses.
        let begin = unsafe {
            libc::mmap(
                null_mut(),
                RESERVED,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if begin == libc::MAP_FAILED {
            0
        } else {
            begin as usize
        }
    })
}

fn is_kept(block: *mut u8) -> bool {
    BEGIN
        .get()
        .is_some_and(|begin| (block as usize).wrapping_sub(*begin) < RESERVED && *begin > 0)
}

impl Blocks {
    fn take(&mut self, size: usize) -> *mut u8 {
        let block = self.free[size];
        if !block.is_null() {
            // SAFETY: a block that is not used has the address of the next one.
            self.free[size] = unsafe { block.cast::<*mut u8>().read() };
            return block;
        }
        let bytes = bytes(size);
        if self.chunk.1 - self.chunk.0 < bytes {
            let at = USED.fetch_add(CHUNK, Ordering::Relaxed);
            if at + CHUNK > RESERVED {
                return null_mut();
            }
            self.chunk = (begin() + at, begin() + at + CHUNK);
        }
        self.chunk.0 += bytes;
        (self.chunk.0 - bytes) as *mut u8
    }

    /// Takes all blocks of others.
    fn take_over(&mut self, others: &mut Self) {
        for size in 0..SIZES {
            while !others.free[size].is_null() {
                let block = others.take(size);
                self.put(block, size);
            }
        }
    }

    fn put(&mut self, block: *mut u8, size: usize) {
        // SAFETY: the block is not used any more, and has room for an address.
        unsafe { block.cast::<*mut u8>().write(self.free[size]) };
        self.free[size] = block;
    }
}

/// From now on the blocks of this thread are kept.
pub fn enter() {
    if begin() > 0 {
        let mut blocks = lock(&SPARE).pop().unwrap_or(Blocks::NONE);
        blocks.take_over(&mut lock(&RETURNED));
        // SAFETY: only this thread has it, and nothing here asks for memory.
        OWN.with(|own| unsafe { *own.get() = blocks });
        IS_OWN.set(true);
    }
}

/// Leaves the blocks of this thread to those to come.
pub fn leave() {
    if IS_OWN.replace(false) {
        // SAFETY: the same.
        let blocks = OWN.with(|own| unsafe { std::mem::replace(&mut *own.get(), Blocks::NONE) });
        lock(&SPARE).push(blocks);
    }
}

pub struct Memory;

// SAFETY: a block is as large and as aligned as its size says, and belongs to one caller at a time.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(size) = size_of(layout)
            && IS_OWN.try_with(Cell::get).unwrap_or(false)
        {
            // SAFETY: only this thread has it, and nothing here asks for memory.
            let block = OWN.with(|own| unsafe { (*own.get()).take(size) });
            if !block.is_null() {
                return block;
            }
        }
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match size_of(layout).filter(|_| is_kept(block)) {
            // SAFETY: as the caller says.
            None => unsafe { System.dealloc(block, layout) },
            // SAFETY: only this thread has it, and nothing here asks for memory.
            Some(size) if IS_OWN.try_with(Cell::get).unwrap_or(false) => {
                OWN.with(|own| unsafe { (*own.get()).put(block, size) });
            }
            Some(size) => lock(&RETURNED).put(block, size),
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller says.
        unsafe {
            if !is_kept(block) {
                return System.realloc(block, layout, size);
            }
            let larger = Layout::from_size_align_unchecked(size, layout.align());
            if size_of(layout) == size_of(larger) {
                return block;
            }
            let other = self.alloc(larger);
            if !other.is_null() {
                block.copy_to_nonoverlapping(other, size.min(layout.size()));
                self.dealloc(block, layout);
            }
            other
        }
    }
}
