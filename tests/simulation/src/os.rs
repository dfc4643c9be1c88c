//! The clock and the randomness of a world: the symbols of the C library that std and the crates ask. A world has a thread of
//! its own. Other threads have the system's.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

thread_local! {
    static RANDOM: Cell<Option<u64>> = const { Cell::new(None) };
    static IS_VIRTUAL: Cell<bool> = const { Cell::new(false) };
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// When each world begins, in seconds since the Unix epoch: 5 s before midnight.
pub const EPOCH: u64 = 1_700_006_395;

/// When the machines of each world were started, in seconds before that.
const UP: u64 = 1_000_000;

/// Draws a number (SplitMix64, Steele, Lea and Flood 2014).
pub fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// Makes the thread that of a world. Its clock stands still until [`start`].
pub fn enter(seed: u64) {
    RANDOM.set(Some(seed));
    IS_VIRTUAL.set(true);
}

/// Lets the clock follow that of the runtime, which is paused.
pub fn start() {
    BEGAN.set(Some(Instant::now()));
}

/// Gives the thread the system's clock and randomness back.
pub fn leave() {
    BEGAN.set(None);
    IS_VIRTUAL.set(false);
    RANDOM.set(None);
}

/// The time since the world began.
pub fn elapsed() -> Duration {
    BEGAN
        .get()
        .map_or(Duration::ZERO, |began| Instant::now() - began)
}

/// # Safety
///
/// `buffer` must be valid for writes of `length` bytes, as `getrandom(2)` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, flags: u32) -> isize {
    let Ok(Some(mut state)) = RANDOM.try_with(Cell::get) else {
        // SAFETY: the arguments are those of the caller.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as isize };
    };
    for at in 0..length {
        // SAFETY: `at` is below the length of the buffer.
        unsafe { *buffer.add(at) = draw(&mut state) as u8 };
    }
    // The thread may be ending.
    let _ = RANDOM.try_with(|random| random.set(Some(state)));
    length as isize
}

/// # Safety
///
/// `to` must be valid for a write, as `clock_gettime(2)` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: i32, to: *mut libc::timespec) -> i32 {
    if !IS_VIRTUAL.try_with(Cell::get).unwrap_or(false) {
        // SAFETY: the arguments are those of the caller.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, i64::from(clock), to) as i32 };
    }
    let now = elapsed()
        + Duration::from_secs(if clock == libc::CLOCK_REALTIME {
            EPOCH
        } else {
            UP
        });
    // SAFETY: the caller's place is valid for a write.
    unsafe {
        (*to).tv_sec = now.as_secs() as libc::time_t;
        (*to).tv_nsec = now.subsec_nanos() as libc::c_long;
    }
    0
}
