//! Addresses and networks from text.

mod network;
mod node;
