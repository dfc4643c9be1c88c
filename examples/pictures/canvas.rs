//! Draws in one style: the page with its texts, panels with axes, and what is drawn into panels.

use std::error::Error;
use std::fmt::Display;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(crate) type Done<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

pub(crate) const PAPER: RGBColor = RGBColor(252, 252, 250);
const GRID: RGBColor = RGBColor(226, 230, 234);
pub(crate) const INK: RGBColor = RGBColor(34, 48, 60);
pub(crate) const MUTED: RGBColor = RGBColor(92, 108, 122);
pub(crate) const STEEL: RGBColor = RGBColor(84, 122, 158);
pub(crate) const MIST: RGBColor = RGBColor(184, 202, 218);
pub(crate) const ACCENT: RGBColor = RGBColor(212, 72, 16);

pub(crate) const WIDTH: i32 = 800;
pub(crate) const HEIGHT: i32 = 400;
/// plotters rounds to whole pixels, so everything is drawn this much larger, and scaled by the viewBox.
const SCALE: i32 = 4;
/// plotters divides the size of a font by this number.
const EM: f64 = 1.24;
const FONT: &str = "Helvetica, Arial, sans-serif";

/// A place of a text relative to its point.
#[derive(Clone, Copy)]
pub(crate) enum Align {
    Left,
    Middle,
    Right,
}

/// A page of 800 × 400 pixels.
pub(crate) struct Page<'a>(DrawingArea<SVGBackend<'a>, Shift>);

/// Draws a page and returns it as SVG. The note stands at the bottom, and says where the numbers are from.
pub(crate) fn page(
    title: &str,
    subtitle: &str,
    note: &str,
    fill: impl FnOnce(&Page<'_>) -> Done,
) -> Done<String> {
    let mut svg = String::new();
    let size = ((WIDTH * SCALE) as u32, (HEIGHT * SCALE) as u32);
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.draw(&Rectangle::new(
            [(0, 0), (WIDTH * SCALE, HEIGHT * SCALE)],
            PAPER.filled(),
        ))?;
        let page = Page(root);
        page.text((24, 25), title, 17.0, INK, Align::Left)?;
        page.text((24, 47), subtitle, 12.5, MUTED, Align::Left)?;
        page.text((24, HEIGHT - 13), note, 10.5, MUTED, Align::Left)?;
        fill(&page)?;
        page.0.present()?;
    }
    let large = format!("width=\"{}\" height=\"{}\"", size.0, size.1);
    let shown = format!(
        "width=\"{WIDTH}\" height=\"{HEIGHT}\" style=\"max-width:100%;height:auto\" role=\"img\" aria-label=\"{title}\""
    );
    Ok(svg.replacen(&large, &shown, 1))
}

impl<'a> Page<'a> {
    pub(crate) fn text(
        &self,
        (x, y): (i32, i32),
        text: &str,
        size: f64,
        color: RGBColor,
        align: Align,
    ) -> Done {
        let at = (x * SCALE, y * SCALE);
        Ok(self
            .0
            .draw(&Text::new(text.to_owned(), at, font(size, color, align)))?)
    }

    /// Returns a panel of the pixels `left..right` and `top..bottom` that shows the ranges `x` and `y`.
    pub(crate) fn panel(
        &self,
        pixels: (Range<i32>, Range<i32>),
        x: Range<f64>,
        y: Range<f64>,
    ) -> Panel<'a> {
        let scaled = |range: &Range<i32>| (range.start * SCALE, range.end * SCALE);
        let ((left, right), (top, bottom)) = (scaled(&pixels.0), scaled(&pixels.1));
        let coordinates = Cartesian2d::new(x.clone(), y.clone(), (left..right, bottom..top));
        Panel {
            area: self.0.clone().apply_coord_spec(coordinates),
            x,
            y,
        }
    }
}

/// A part of a page with axes. All points are in the units of the axes, and all sizes in pixels.
pub(crate) struct Panel<'a> {
    area: DrawingArea<SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>,
    x: Range<f64>,
    y: Range<f64>,
}

impl Panel<'_> {
    /// Draws the axis at the bottom with labels at `ticks`. A unit of one letter is
    /// appended to the last label, a longer one stands below.
    pub(crate) fn x_axis<T: Into<f64> + Display + Copy>(&self, ticks: &[T], unit: &str) -> Done {
        let labels: Vec<_> = ticks
            .iter()
            .map(|&tick| (tick.into(), tick.to_string()))
            .collect();
        self.x_labels(&labels, unit)
    }

    pub(crate) fn x_labels(&self, labels: &[(f64, String)], unit: &str) -> Done {
        let base = self.y.start;
        self.line([(self.x.start, base), (self.x.end, base)], MUTED, 1.0)?;
        for (index, (x, label)) in labels.iter().enumerate() {
            self.mark((*x, base), [(0.0, 0.0), (0.0, 4.0)])?;
            let last = index + 1 == labels.len();
            let label = if last && unit.len() == 1 {
                format!("{label} {unit}")
            } else {
                label.clone()
            };
            self.label((*x, base), (0.0, 14.0), &label, MUTED, Align::Middle)?;
        }
        if unit.len() > 1 {
            self.label((self.x.end, base), (0.0, 30.0), unit, MUTED, Align::Right)?;
        }
        Ok(())
    }

    /// Draws lines at `ticks` with labels to the left. `title` stands above the axis.
    pub(crate) fn y_axis<T: Into<f64> + Display + Copy>(&self, ticks: &[T], title: &str) -> Done {
        for &tick in ticks {
            let y = tick.into();
            if y > self.y.start {
                self.line([(self.x.start, y), (self.x.end, y)], GRID, 1.0)?;
            }
            self.label(
                (self.x.start, y),
                (-7.0, 0.0),
                &tick.to_string(),
                MUTED,
                Align::Right,
            )?;
        }
        if title.is_empty() {
            return Ok(());
        }
        self.label(
            (self.x.start, self.y.end),
            (-7.0, -15.0),
            title,
            MUTED,
            Align::Left,
        )
    }

    pub(crate) fn line(
        &self,
        points: impl IntoIterator<Item = (f64, f64)>,
        color: RGBColor,
        width: f64,
    ) -> Done {
        let points: Vec<_> = points.into_iter().collect();
        Ok(self.area.draw(&PathElement::new(
            points,
            color.stroke_width(pixels(width) as u32),
        ))?)
    }

    /// Draws a dashed straight line.
    pub(crate) fn dashed(
        &self,
        from: (f64, f64),
        to: (f64, f64),
        color: RGBColor,
        width: f64,
    ) -> Done {
        const DASHES: u32 = 60;
        let at = |part: f64| {
            (
                from.0 + (to.0 - from.0) * part,
                from.1 + (to.1 - from.1) * part,
            )
        };
        for dash in 0..DASHES {
            let begin = f64::from(dash) / f64::from(DASHES);
            self.line(
                [at(begin), at(begin + 0.6 / f64::from(DASHES))],
                color,
                width,
            )?;
        }
        Ok(())
    }

    /// Fills the area between points and the axis at the bottom.
    pub(crate) fn area(&self, points: &[(f64, f64)], color: RGBColor, opacity: f64) -> Done {
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return Ok(());
        };
        let mut outline = vec![(first.0, self.y.start)];
        outline.extend_from_slice(points);
        outline.push((last.0, self.y.start));
        Ok(self
            .area
            .draw(&Polygon::new(outline, color.mix(opacity).filled()))?)
    }

    /// Fills the rectangle between two corners.
    pub(crate) fn bar(
        &self,
        from: (f64, f64),
        to: (f64, f64),
        color: RGBColor,
        opacity: f64,
    ) -> Done {
        Ok(self
            .area
            .draw(&Rectangle::new([from, to], color.mix(opacity).filled()))?)
    }

    pub(crate) fn dot(&self, at: (f64, f64), radius: f64, color: RGBColor) -> Done {
        Ok(self
            .area
            .draw(&Circle::new(at, pixels(radius), color.filled()))?)
    }

    pub(crate) fn ring(&self, at: (f64, f64), radius: f64, color: RGBColor) -> Done {
        self.dot(at, radius, PAPER)?;
        Ok(self.area.draw(&Circle::new(
            at,
            pixels(radius),
            color.stroke_width(pixels(1.4) as u32),
        ))?)
    }

    pub(crate) fn cross(&self, at: (f64, f64), radius: f64, color: RGBColor) -> Done {
        for slope in [-1, 1] {
            let (r, style) = (pixels(radius), color.stroke_width(pixels(2.0) as u32));
            let path = PathElement::new(vec![(-r, -r * slope), (r, r * slope)], style);
            self.area.draw(&(EmptyElement::at(at) + path))?;
        }
        Ok(())
    }

    /// Writes a text beside a point.
    pub(crate) fn label(
        &self,
        at: (f64, f64),
        (dx, dy): (f64, f64),
        text: &str,
        color: RGBColor,
        align: Align,
    ) -> Done {
        self.sized(at, (dx, dy), text, 12.0, color, align)
    }

    pub(crate) fn sized(
        &self,
        at: (f64, f64),
        (dx, dy): (f64, f64),
        text: &str,
        size: f64,
        color: RGBColor,
        align: Align,
    ) -> Done {
        let text = Text::new(
            text.to_owned(),
            (pixels(dx), pixels(dy)),
            font(size, color, align),
        );
        Ok(self.area.draw(&(EmptyElement::at(at) + text))?)
    }

    fn mark(&self, at: (f64, f64), path: [(f64, f64); 2]) -> Done {
        let path = path.map(|(x, y)| (pixels(x), pixels(y))).to_vec();
        let path = PathElement::new(path, MUTED.stroke_width(SCALE as u32));
        Ok(self.area.draw(&(EmptyElement::at(at) + path))?)
    }
}

fn pixels(size: f64) -> i32 {
    (size * f64::from(SCALE)).round() as i32
}

fn font(size: f64, color: RGBColor, align: Align) -> TextStyle<'static> {
    let align = match align {
        Align::Left => HPos::Left,
        Align::Middle => HPos::Center,
        Align::Right => HPos::Right,
    };
    let mut style = (FONT, size * EM * f64::from(SCALE)).into_text_style(&(1, 1));
    style.color = color.to_backend_color();
    style.pos(Pos::new(align, VPos::Center))
}

/// Returns the points of a line that keeps each value until the next one.
pub(crate) fn steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let corners = points
        .windows(2)
        .flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]);
    corners.chain(points.last().copied()).collect()
}
