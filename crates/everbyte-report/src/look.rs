//! Looks of series: a color in each mode, a dash and a marker.
//!
//! Invariants: two looks of a page differ in color, and the first [`PALETTE`] also in dash or marker.
//! Each color has a contrast of at least 3 with the page in its mode (WCAG 2.1, 1.4.11).

use std::fmt::Write;

/// Colors in light and dark mode. They were chosen by a search for the largest least distance in
/// `OKLab`, as seen with normal vision, with protanopia and with deuteranopia.
const PALETTE: [(u32, u32); 24] = [
    (0x1e_4b78, 0x69_b4ff),
    (0xff_5a00, 0xff_0f0f),
    (0x4b_3cff, 0xf0_f000),
    (0x0f_a587, 0xb4_00ff),
    (0x96_000f, 0x5a_785a),
    (0x78_00b4, 0x5a_ffff),
    (0x4b_784b, 0xf0_e1d2),
    (0xff_3cc3, 0xff_96a5),
    (0xd2_3c5a, 0x1e_8700),
    (0x2d_0f96, 0xf0_2dd2),
    (0x5a_1e2d, 0xb4_69ff),
    (0x87_87f0, 0xd2_c3ff),
    (0x2d_4b00, 0xf0_8700),
    (0x5a_4b4b, 0x87_9669),
    (0xb4_2dc3, 0x96_ff96),
    (0x00_00e1, 0x00_87d2),
    (0xd2_7869, 0xe1_0087),
    (0xb4_4b00, 0x3c_c369),
    (0x78_7887, 0x69_e100),
    (0x4b_1e69, 0xf0_69a5),
    (0x87_4b96, 0xc3_96d2),
    (0x1e_a500, 0xc3_d287),
    (0x4b_96c3, 0x5a_d2d2),
    (0x2d_78ff, 0x87_69a5),
];

/// Dashes: lengths of strokes and gaps, in pixels. Without one the line is solid.
const DASHES: [&[u32]; 4] = [&[], &[7, 3], &[2, 3], &[10, 3, 2, 3]];
/// Markers: corners around the middle, in pixels.
const MARKERS: [&[(i32, i32)]; 7] = [
    &[(4, 0), (3, 3), (0, 4), (-3, 3), (-4, 0), (-3, -3), (0, -4), (3, -3)],
    &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
    &[(0, -5), (5, 4), (-5, 4)],
    &[(0, -6), (5, 0), (0, 6), (-5, 0)],
    &[(0, 5), (-5, -4), (5, -4)],
    &[
        (-2, -5),
        (2, -5),
        (2, -2),
        (5, -2),
        (5, 2),
        (2, 2),
        (2, 5),
        (-2, 5),
        (-2, 2),
        (-5, 2),
        (-5, -2),
        (-2, -2),
    ],
    &[(-5, -5), (0, -2), (5, -5), (2, 0), (5, 5), (0, 2), (-5, 5), (-2, 0)],
];
/// Half of the square that holds a marker, in pixels.
const MARKER_PX: i32 = 6;
/// Hues of looks beyond the palette lie a golden angle apart, so they never repeat.
const HUE_STEP: f64 = 137.507_764;

/// The color of a look, in light or dark mode, as `0xRRGGBB`.
pub(crate) fn color(look: usize, is_dark: bool) -> u32 {
    match PALETTE.get(look) {
        Some((light, dark)) => {
            if is_dark {
                *dark
            } else {
                *light
            }
        }
        None => beyond(look, is_dark),
    }
}

/// A color beyond the palette, with a separate hue.
fn beyond(look: usize, is_dark: bool) -> u32 {
    let number = u32::try_from(look).unwrap_or(u32::MAX);
    // The golden angle keeps any number of consecutive hues apart.
    let hue = (f64::from(number) * HUE_STEP) % 360.0;
    let bright = f64::from(number % 5);
    // Of light colors yellow is the brightest and needs the least lightness.
    let lightness = if is_dark { 0.66 + 0.06 * bright } else { 0.18 + 0.03 * bright };
    let channel = |shift: f64| {
        let place = (shift + hue / 30.0) % 12.0;
        let chroma = 0.8 * lightness.min(1.0 - lightness);
        let value = lightness - chroma * (place - 3.0).min(9.0 - place).clamp(-1.0, 1.0);
        #[expect(clippy::cast_possible_truncation, reason = "the share lies in 0..=1")]
        #[expect(clippy::cast_sign_loss, reason = "the share lies in 0..=1")]
        let value = (value.clamp(0.0, 1.0) * 255.0).round() as u32;
        value
    };
    (channel(0.0) << 16) | (channel(8.0) << 8) | channel(4.0)
}

pub(crate) fn dash(look: usize) -> usize {
    look % DASHES.len()
}

pub(crate) fn marker(look: usize) -> usize {
    look % MARKERS.len()
}

/// The drawing of a look's marker, in a larger invisible disc that a pointer meets.
pub(crate) fn marker_svg(look: usize) -> String {
    let corners = MARKERS[marker(look)];
    let corners: Vec<String> = corners.iter().map(|(x, y)| format!("{x},{y}")).collect();
    format!("<circle class=\"hit\" r=\"9\"/><polygon points=\"{}\"/>", corners.join(" "))
}

/// The style of looks 0 to `count`.
pub(crate) fn style(count: usize) -> String {
    let mut style = String::new();
    for (number, dash) in DASHES.iter().enumerate().filter(|(_, dash)| !dash.is_empty()) {
        let lengths: Vec<String> = dash.iter().map(ToString::to_string).collect();
        style += &format!(".d{number} line{{stroke-dasharray:{}}}", lengths.join(" "));
        let mut at = 0;
        let parts = dash.iter().enumerate().map(|(part, length)| {
            let color = if part % 2 == 0 { "currentColor" } else { "transparent" };
            let from = at;
            at += length;
            format!("{color} {from}px {at}px")
        });
        let parts: Vec<String> = parts.collect();
        style += &format!(
            ".legend .d{number}::before{{background:repeating-linear-gradient(90deg,{})}}",
            parts.join(",")
        );
    }
    for (number, corners) in MARKERS.iter().enumerate() {
        let percent = |at: i32| (at + MARKER_PX) * 100 / (2 * MARKER_PX);
        let corners: Vec<String> =
            corners.iter().map(|(x, y)| format!("{}% {}%", percent(*x), percent(*y))).collect();
        style += &format!(".legend .m{number}::after{{clip-path:polygon({})}}", corners.join(","));
    }
    // Dark last: it overrides the light colors where the reader asks for it.
    for (is_dark, before, after) in
        [(false, "", ""), (true, "@media (prefers-color-scheme:dark){", "}")]
    {
        style += before;
        for look in 0..count {
            // Writing to a string cannot fail.
            let _written = write!(style, ".s{look}{{color:#{:06x}}}", color(look, is_dark));
        }
        style += after;
    }
    style
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Backgrounds of a page in light and dark mode.
    const BACKGROUNDS: [u32; 2] = [0xff_ffff, 0x14_181f];

    /// Relative luminance (WCAG 2.1).
    fn luminance(color: u32) -> f64 {
        let channel = |shift: u32| {
            let part = f64::from((color >> shift) & 0xff) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(16) + 0.7152 * channel(8) + 0.0722 * channel(0)
    }

    fn contrast(one: u32, other: u32) -> f64 {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn every_color_is_readable_in_its_mode() {
        for background in BACKGROUNDS {
            assert!(include_str!("page.css").contains(&format!("--bg:#{background:06x}")));
        }
        for look in 0..200 {
            for (is_dark, background) in [false, true].into_iter().zip(BACKGROUNDS) {
                let found = contrast(color(look, is_dark), background);
                assert!(found >= 3.0, "look {look}, dark {is_dark}: {found}");
            }
        }
    }

    #[test]
    fn no_two_looks_share_a_color() {
        for is_dark in [false, true] {
            let colors: HashSet<u32> = (0..100).map(|look| color(look, is_dark)).collect();
            assert_eq!(colors.len(), 100, "dark {is_dark}");
        }
        let signs: HashSet<_> = (0..PALETTE.len()).map(|look| (dash(look), marker(look))).collect();
        assert_eq!(signs.len(), PALETTE.len());
    }
}
