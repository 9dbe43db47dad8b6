import type { ComponentChildren } from "preact";
import { Link, useTitle } from "../browser/router.ts";

export interface Crumb {
  readonly label: ComponentChildren;
  /** absent for the last one, the present place */
  readonly href?: string;
}

/** Breadcrumbs: links to the places above this one. */
export function Breadcrumbs({
  label = "Breadcrumb",
  crumbs,
}: {
  readonly label?: string;
  readonly crumbs: readonly Crumb[];
}) {
  return (
    <nav class="breadcrumbs" aria-label={label}>
      <ol class="row wrap gap-2 small muted">
        {crumbs.map(({ label: text, href }, index) => (
          <li key={index} class="row gap-2 shrink">
            {href === undefined ? <span aria-current="page">{text}</span> : <Link href={href}>{text}</Link>}
          </li>
        ))}
      </ol>
    </nav>
  );
}

export interface PageHeaderProps {
  /** the heading of the view */
  readonly heading: ComponentChildren;
  /** title of the window; absent: `heading`, which then is a string */
  readonly title?: string;
  readonly crumbs?: readonly Crumb[];
  /** one line below the heading */
  readonly about?: ComponentChildren;
  /** buttons at the end */
  readonly actions?: ComponentChildren;
}

/** The head of every view: its one `<h1>`, which also titles the window. */
export function PageHeader({ heading, title, crumbs, about, actions }: PageHeaderProps) {
  useTitle(title ?? (typeof heading === "string" ? heading : ""));
  return (
    <header class="stack gap-2">
      {crumbs === undefined ? null : <Breadcrumbs crumbs={crumbs} />}
      <div class="page-header-row row wrap between gap-2-4">
        <h1>{heading}</h1>
        {actions === undefined ? null : <div class="flex wrap gap-2">{actions}</div>}
      </div>
      {about === undefined ? null : <div class="muted">{about}</div>}
    </header>
  );
}
