import type { ComponentChildren } from "preact";
import { classes } from "../classes.ts";

export interface Column<Row> {
  readonly id: string;
  readonly label: string;
  readonly cell: (row: Row) => ComponentChildren;
  /** true: aligns the content at the end, for figures */
  readonly isFigure?: boolean;
  /** true: the cell names the row; by default the first one does */
  readonly isHeading?: boolean;
  /** true: takes the remaining width */
  readonly isWide?: boolean;
  /** true: the label is for screen readers alone, such as above buttons */
  readonly isLabelHidden?: boolean;
}

export interface TableProps<Row> {
  /** name of the list, for screen readers */
  readonly label: string;
  readonly columns: readonly Column<Row>[];
  readonly rows: readonly Row[];
  readonly rowKey: (row: Row) => string;
}

/** A table of at most a few hundred rows; if it is narrow, each row becomes a small list. `VirtualRows` is for more rows. */
export function Table<Row>({ label, columns, rows, rowKey }: TableProps<Row>) {
  const heading = columns.find((column) => column.isHeading === true) ?? columns[0];
  return (
    <div class="table-place">
      {/* In a narrow place rows are laid out as lists, which would take the roles away. */}
      <table class="table" role="table" aria-label={label}>
        <thead role="rowgroup">
          <tr role="row">
            {columns.map((column) => (
              <th key={column.id} role="columnheader" scope="col" class={cellClass(column)}>
                <span class={column.isLabelHidden ? "visually-hidden" : undefined}>{column.label}</span>
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {rows.map((row) => (
            <tr key={rowKey(row)} role="row">
              {columns.map((column) => (
                <td
                  key={column.id}
                  role={column === heading ? "rowheader" : "cell"}
                  class={classes(
                    cellClass(column),
                    column === heading && "cell-heading",
                    column.isLabelHidden && "cell-bare",
                  )}
                  data-label={column.isLabelHidden === true || column === heading ? undefined : column.label}
                >
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function cellClass({ isFigure, isWide }: { readonly isFigure?: boolean; readonly isWide?: boolean }): string {
  return classes("cell", isFigure && "cell-figure", isWide && "cell-wide");
}
