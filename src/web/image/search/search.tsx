import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { useShortcut } from "../../browser/keys.ts";
import { navigate } from "../../browser/router.ts";
import { Button } from "../../parts/button.tsx";
import { Empty } from "../../parts/empty.tsx";
import { Checkbox, Field } from "../../parts/field.tsx";
import { Segments } from "../../parts/segments.tsx";
import { printable } from "../../text/printable.ts";
import { type ImageLink, linkTo } from "../link.ts";
import { pathFromText, shownPath } from "../paths.ts";
import { Matches } from "./matches.tsx";
import { Names } from "./names.tsx";
import { globOf } from "./search-steps.ts";

const WAYS = [
  { value: "name", label: "By name" },
  { value: "text", label: "By content" },
] as const;

/** Search by name, and by content. */
export function Search({ link }: { readonly link: ImageLink }) {
  const { fields, path } = link;
  const isByName = fields.get("by") !== "text";
  const pattern = fields.get(isByName ? "name" : "text") ?? "";
  return (
    <section class="stack gap-3 shrink" aria-label="Search">
      <SearchForm link={link} isByName={isByName} />
      {pattern === "" ? (
        <Nothing isByName={isByName} />
      ) : isByName ? (
        <Names key={`${path} ${pattern}`} link={link} glob={globOf(pattern)} />
      ) : (
        <Matches key={`${path} ${fields}`} link={link} pattern={pattern} />
      )}
    </section>
  );
}

function Nothing({ isByName }: { readonly isByName: boolean }) {
  return isByName ? (
    <Empty
      title="Find files by name"
      text="Enter part of a name, or a glob: *.conf, or etc/**/passwd for a path below the directory."
    />
  ) : (
    <Empty
      title="Search in files"
      text="Enter a regular expression in RE2 syntax, such as error|warning. Binary files are skipped."
    />
  );
}

function SearchForm({ link, isByName }: { readonly link: ImageLink; readonly isByName: boolean }) {
  const { image, path, fields } = link;
  const [pattern, setPattern] = useState("");
  const [files, setFiles] = useState("");
  // A path that is not UTF-8 cannot be typed, so it stays until another one is typed.
  const [below, setBelow] = useState<string | null>(null);
  const [isExact, setExact] = useState(false);
  // A new form for each link would lose the focus after a search.
  useLayoutEffect(() => {
    setPattern(fields.get(isByName ? "name" : "text") ?? "");
    setFiles(fields.get("files") ?? "");
    setBelow(null);
    setExact(fields.get("case") === "1");
  }, [`${path} ${fields}`]);
  const place = useRef<HTMLFormElement>(null);
  const focus = () => place.current?.querySelector("input")?.focus();
  useShortcut({ keys: "/", text: "Go to the search field", group: "Search" }, focus);
  const send = (by: "name" | "text") => {
    const directory = below === null ? path : pathFromText(below);
    const query =
      by === "name" ? { name: pattern } : { by, text: pattern, files: files.trim(), case: isExact ? 1 : null };
    navigate(linkTo(image, "search", directory, query));
  };
  return (
    <form
      ref={place}
      class="stack items-start gap-3"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        send(isByName ? "name" : "text");
      }}
    >
      <Segments label="Search by" value={isByName ? "name" : "text"} choices={WAYS} onValue={send} />
      <div class="image-search-fields flex items-end wrap gap-2">
        <div class="image-search-wanted">
          <Field
            label={isByName ? "Name or glob" : "Regular expression"}
            isMono
            type="search"
            value={pattern}
            onValue={setPattern}
          />
        </div>
        <Field label="In directory" isMono value={below ?? printable(shownPath(path))} onValue={setBelow} />
        {isByName ? null : <Field label="Only in files" placeholder="*.py" isMono value={files} onValue={setFiles} />}
        <Button type="submit" tone="primary" icon="search">
          Search
        </Button>
      </div>
      {isByName ? null : <Checkbox label="Match case" isChecked={isExact} onChecked={setExact} />}
    </form>
  );
}
