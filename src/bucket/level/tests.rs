mod refill;
mod windows;
