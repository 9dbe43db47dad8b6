import { Component, type ComponentChild, type ComponentType } from "preact";

interface Versioned {
  /** changes with all that the component shows but the other properties that are compared */
  readonly version: string;
  readonly search: unknown;
}

/** A component that is redrawn only when its version or its search changes. */
export function memo<Props extends Versioned>(render: (props: Props) => ComponentChild): ComponentType<Props> {
  return class extends Component<Props> {
    override shouldComponentUpdate(next: Props): boolean {
      return next.version !== this.props.version || next.search !== this.props.search;
    }

    override render(props: Props): ComponentChild {
      return render(props);
    }
  };
}
