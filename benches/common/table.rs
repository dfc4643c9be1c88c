//! Tables in Markdown, which are aligned for those who read them in a terminal.

pub struct Table<const COLUMNS: usize> {
    title: String,
    /// The first are the columns' names.
    rows: Vec<[String; COLUMNS]>,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    pub fn new(title: impl Into<String>, columns: [&str; COLUMNS]) -> Self {
        Self {
            title: title.into(),
            rows: vec![columns.map(str::to_owned)],
        }
    }

    pub fn row(&mut self, row: [String; COLUMNS]) {
        self.rows.push(row);
    }

    pub fn print(&self) {
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
        };
        let widths: [usize; COLUMNS] =
            std::array::from_fn(|column| width(column).unwrap_or(0).max(3));
        println!("\n**{}**\n", self.title);
        for (number, row) in self.rows.iter().enumerate() {
            let cells = row
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell:<width$}"));
            println!("| {} |", cells.collect::<Vec<_>>().join(" | "));
            if number == 0 {
                println!("|{}|", widths.map(|width| "-".repeat(width + 2)).join("|"));
            }
        }
    }
}
