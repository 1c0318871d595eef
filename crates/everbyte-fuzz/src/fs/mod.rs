//! File systems: images with damage, and operations against a model.

mod image;
mod operations;
mod story;
mod walk;

pub use image::fs_image;
pub use operations::fs_operations;
