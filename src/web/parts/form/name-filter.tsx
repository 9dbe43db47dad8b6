import { Field } from "../field.tsx";

interface NameFilterProps {
  readonly value: string;
  readonly onValue: (value: string) => void;
}

/** The search of a list by name. */
export function NameFilter(props: NameFilterProps) {
  return <Field {...props} label="Filter by name" isLabelHidden placeholder="Filter by name" type="search" />;
}
