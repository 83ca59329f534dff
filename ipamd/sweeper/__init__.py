"""The program `vpc-ipamd-sweeper`: deletes a cluster's leaked ENIs."""
