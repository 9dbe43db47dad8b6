import { Component, type ComponentChild, type ComponentType } from "preact";

interface Versioned {
  /** changes with the content of the component, as far as the other compared properties do not cover it */
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
